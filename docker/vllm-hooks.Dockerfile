# vLLM with a plug-in of yours (conf/engine/wisp.yaml), from wheels in docker/wheels that need nothing vLLM lacks:
# docker build -f docker/vllm-hooks.Dockerfile -t ostinato-vllm-hooks .
# Tokens are forced by vLLM itself; a plug-in that replaces its sampler needs engine.forcing=one_token.
ARG VLLM=vllm/vllm-openai:v0.33.0
FROM ${VLLM}
USER 0:0
COPY docker/wheels /wheels
RUN python3 -m pip install --no-cache-dir --no-index --no-deps /wheels/*.whl && rm -rf /wheels
USER 65534:65534
ENTRYPOINT ["vllm"]
CMD ["serve", "--help"]
