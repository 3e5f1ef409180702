# Ostinato on NVIDIA GPUs: docker build -f docker/ostinato-cuda.Dockerfile -t ostinato:cuda .
# PyTorch's wheel brings CUDA's libraries; the driver comes from the host (nvidia-container-toolkit).
ARG PYTHON=python:3.12.11-slim-bookworm
FROM ${PYTHON} AS build
ARG PIP_ARGS=""
COPY docker/pins/ostinato.txt /pins.txt
RUN python3 -m venv --copies /opt/engine \
    && /opt/engine/bin/pip install --no-cache-dir ${PIP_ARGS} -r /pins.txt \
    && echo /opt/source >"$(echo /opt/engine/lib/python3.*/site-packages)/source.pth"

FROM ${PYTHON}
# Triton compiles its launchers with a C compiler at the first start.
RUN apt-get update \
    && apt-get install -y --no-install-recommends gcc libc6-dev libgomp1 numactl \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/engine /opt/engine
COPY engines/__init__.py /opt/source/engines/__init__.py
COPY engines/ostinato /opt/source/engines/ostinato
ENV PATH=/opt/engine/bin:/usr/local/bin:/usr/bin:/bin \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65534:65534
CMD ["python3", "-m", "engines.ostinato", "--help"]
