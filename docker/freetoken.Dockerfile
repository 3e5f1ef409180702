# FreeToken (conf/engine/freetoken.yaml): docker build -f docker/freetoken.Dockerfile -t ostinato-freetoken .
# The CUDA compiler stays in: its kernels are compiled at the first start, into the container's /tmp.
ARG CUDA=13.0.1
FROM nvidia/cuda:${CUDA}-devel-ubuntu24.04
ARG FREETOKEN=0.2.1
ARG PIP_ARGS=""
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ libgomp1 libnuma1 ninja-build numactl python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/engine \
    && /opt/engine/bin/pip install --no-cache-dir ${PIP_ARGS} "freetoken==${FREETOKEN}"
ENV PATH=/opt/engine/bin:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin \
    CUDA_HOME=/usr/local/cuda \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65534:65534
CMD ["ft", "--help"]
