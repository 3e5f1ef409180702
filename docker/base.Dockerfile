# What the CPU images have in common: Debian with Python. docker/base.sh makes the same without a registry.
ARG DEBIAN=debian:bookworm-20250520-slim
FROM ${DEBIAN}
COPY docker/base.packages /tmp/base.packages
RUN apt-get update \
    && xargs apt-get install -y --no-install-recommends </tmp/base.packages \
    && rm -rf /var/lib/apt/lists/* /tmp/base.packages
USER 65534:65534
