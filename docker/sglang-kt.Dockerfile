# KTransformers: SGLang's kvcache-ai fork with the kt-kernel CPU experts (conf/engine/ktransformers.yaml):
# docker build -f docker/sglang-kt.Dockerfile -t ostinato-sglang-kt .
# The CUDA compiler stays in: SGLang and FlashInfer compile kernels at the first start, into the container's /tmp.
ARG CUDA=12.8.1
FROM nvidia/cuda:${CUDA}-devel-ubuntu24.04
ARG SGLANG_KT=0.7.2
ARG KT_KERNEL=0.7.2
ARG PIP_ARGS=""
RUN apt-get update \
    && apt-get install -y --no-install-recommends g++ libgomp1 libhwloc15 libnuma1 ninja-build numactl python3-dev python3-venv \
    && rm -rf /var/lib/apt/lists/*
RUN python3 -m venv /opt/engine \
    && /opt/engine/bin/pip install --no-cache-dir ${PIP_ARGS} "sglang-kt==${SGLANG_KT}" "kt-kernel==${KT_KERNEL}"
ENV PATH=/opt/engine/bin:/usr/local/cuda/bin:/usr/local/bin:/usr/bin:/bin \
    CUDA_HOME=/usr/local/cuda \
    PYTHONDONTWRITEBYTECODE=1 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65534:65534
CMD ["python3", "-m", "sglang.launch_server", "--help"]
