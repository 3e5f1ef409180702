# The harness itself: docker build -f docker/harness.Dockerfile -t ostinato-harness .
# It starts engines beside itself through the host's daemon, and sees their files where the host has them:
#   docker run --rm --network host --pid host -v /var/run/docker.sock:/var/run/docker.sock --group-add "$(stat -c %g /var/run/docker.sock)" \
#     --user "$(id -u):$(id -g)" -v /dev/shm:/dev/shm -v "$PWD:$PWD" -w "$PWD" ostinato-harness engine=ostinato launch=container
ARG PYTHON=python:3.12.11-slim-bookworm
FROM ${PYTHON} AS build
ARG PIP_ARGS=""
COPY pyproject.toml README.md LICENSE /source/
COPY analysis /source/analysis
COPY conf /source/conf
COPY engines /source/engines
COPY replay /source/replay
COPY workloads /source/workloads
# safetensors, gguf: the synthetic model is written in both formats.
RUN python3 -m venv --copies /opt/harness \
    && /opt/harness/bin/pip install --no-cache-dir ${PIP_ARGS} "/source" "safetensors>=0.5,<1" "gguf>=0.17,<1"

FROM ${PYTHON}
# The forcing shim is compiled at its first use.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/harness /opt/harness
ENV PATH=/opt/harness/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1
USER 65534:65534
ENTRYPOINT ["replay"]
CMD ["--help"]
