# Ostinato on a CPU: docker build -f docker/ostinato-cpu.Dockerfile -t ostinato:cpu .
# PIP_ARGS chooses PyTorch's CPU build (--extra-index-url …).
ARG BASE=ostinato-base:bookworm
FROM ${BASE}
ARG PIP_ARGS=""
USER 0:0
COPY docker/pins/ostinato.txt /pins.txt
RUN python3 -m venv /opt/engine \
    && /opt/engine/bin/pip install --no-cache-dir ${PIP_ARGS} -r /pins.txt \
    && echo /opt/source >"$(echo /opt/engine/lib/python3.*/site-packages)/source.pth"
COPY engines/__init__.py /opt/source/engines/__init__.py
COPY engines/ostinato /opt/source/engines/ostinato
ENV PATH=/opt/engine/bin:/usr/local/bin:/usr/bin:/bin PYTHONDONTWRITEBYTECODE=1
USER 65534:65534
CMD ["python3", "-m", "engines.ostinato", "--help"]
