# syntax=docker/dockerfile:1
# Every image by its digest, amd64 and arm64 under one, here and nowhere else. Instead of PYTHON_IMAGE any image with
# Python 3.11 to 3.14 and its venv module will do; the cuda flavour wants apt-get there too.
ARG PYTHON_IMAGE=docker.io/library/python:3.11.15-slim-bookworm@sha256:d29f48a31a8b408ed19272ca1e7b10ebae13b240a27e862d3d4217c528e2e0c3
ARG VLLM_IMAGE=docker.io/vllm/vllm-openai:v0.31.0@sha256:c1c9f6fd5c109ba7f0546a59f5b2f15fb87f64c77782e90a27b648b42a8e67c3
ARG TENSORRT_LLM_IMAGE=nvcr.io/nvidia/tensorrt-llm/release:1.2.1@sha256:33cd085b772947bd22b7273886539331420404e5d2a4a039945241945ff927b9
# cpu; cuda: torch with CUDA, Triton and the compiler it asks for, llama.cpp; vllm and tensorrt-llm: these engines'
# own images, whose Python runs the engine, with our server in an environment beside it.
ARG FLAVOUR=cpu

# Empty, unless the build names a folder of wheels: --build-context wheels=FOLDER
FROM scratch AS wheels

FROM ${PYTHON_IMAGE} AS base-cpu
FROM ${PYTHON_IMAGE} AS base-cuda
COPY tools/packaging/compiler /packaging/
RUN /packaging/compiler gcc && rm -r /packaging
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
FROM ${VLLM_IMAGE} AS base-vllm
USER 0
ENV NIM_ENGINE_PYTHON=vllm=/opt/engine/bin/python3
FROM ${TENSORRT_LLM_IMAGE} AS base-tensorrt-llm
USER 0
ENV NIM_ENGINE_PYTHON=tensorrt_llm=/opt/engine/bin/python3
FROM base-${FLAVOUR} AS base

# Everything but Harmonium itself: this stage is rebuilt only when a dependency changes.
FROM base AS dependencies
ARG FLAVOUR
# Where torch comes from besides PyPI, whose own wheel brings CUDA along; empty for PyPI alone.
# Not given: PyTorch's index of CPU builds for the cpu flavour, PyPI alone for cuda. The others' server has no torch.
ARG TORCH_INDEX_URL
WORKDIR /src
COPY tools/packaging/pip tools/packaging/trim tools/packaging/dependencies.py /packaging/
COPY pyproject.toml constraints.txt ./
RUN --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=secret,id=pip_cert \
    python3 -m venv --without-pip /opt/harmonium \
    && case "$FLAVOUR" in vllm|tensorrt-llm) without="--without torch" ;; cpu) index=https://download.pytorch.org/whl/cpu ;; esac \
    && /opt/harmonium/bin/python /packaging/dependencies.py pyproject.toml ${without-} > requirements.txt \
    && PIP_FIND_LINKS=/wheels PIP_EXTRA_INDEX_URL=${TORCH_INDEX_URL-${index-}} /packaging/pip install \
       --constraint constraints.txt --requirement requirements.txt \
    && /packaging/trim

# llama.cpp, unpacked under /image as it lies in the final image; most flavours go without.
FROM base AS llama-cpu
RUN mkdir -p /image/opt/harmonium
FROM llama-cpu AS llama-vllm
FROM llama-cpu AS llama-tensorrt-llm
FROM dependencies AS llama-cuda
# Semicolons between them, as CMake writes them; empty: what llama.cpp chooses; none: no CUDA, which is built in minutes.
ARG LLAMA_CUDA_ARCHITECTURES=
COPY tools/packaging/compiler tools/packaging/llama_cpp /packaging/
RUN --mount=type=secret,id=pip_cert \
    /packaging/compiler g++ && /packaging/llama_cpp /image "$LLAMA_CUDA_ARCHITECTURES"
FROM llama-${FLAVOUR} AS llama

# Harmonium's wheel, unpacked under /image as it lies in the final image.
FROM dependencies AS wheel
ARG FLAVOUR
# GPU architectures whose kernels the cuda flavour brings compiled; others compile them at their first start.
# All that can be compiled ahead: 0.2 GB and 11 minutes of one core.
ARG KERNEL_ARCHITECTURES="80 86 89 90 100 103 120 121"
COPY tools/packaging/finish tools/packaging/entrypoint /packaging/
COPY README.md LICENSE NOTICE harmonium.py ./
COPY auth auth
COPY engines engines
COPY parts parts
COPY profiles profiles
COPY service service
RUN if [ "$FLAVOUR" = cuda ]; then \
        /opt/harmonium/bin/python -m engines.native.backends.cuda.offline --architectures $KERNEL_ARCHITECTURES; \
    fi
RUN --mount=type=secret,id=pip_cert \
    /packaging/pip wheel --no-deps --wheel-dir /dist . \
    && /packaging/pip install --no-deps --no-index --no-compile --no-warn-script-location --root /image /dist/*.whl \
    && /packaging/finish /image "$FLAVOUR" /dist/*.whl

FROM base AS runtime
# The sandboxes of NIM_BUILTIN_TOOLS; a base without apt-get goes without them, and the server says so where it is set.
RUN if command -v apt-get > /dev/null; then \
        apt-get update -qq \
        && DEBIAN_FRONTEND=noninteractive apt-get install -qq --no-install-recommends bubblewrap > /dev/null \
        && rm -rf /var/lib/apt/lists/*; \
    fi
# Group 0 may write the cache, so that any uid does (OpenShift picks one).
RUN mkdir -p /opt/nim/.cache && chown 10001:0 /opt/nim/.cache && chmod 2775 /opt/nim/.cache
COPY LICENSE NOTICE /licenses/
COPY --from=dependencies /opt/harmonium /opt/harmonium
COPY --from=llama /image/opt/harmonium /opt/harmonium
COPY --from=wheel /image/opt /opt

ENV PATH=/opt/harmonium/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/opt/nim/.cache \
    USER=harmonium \
    NIM_CACHE_PATH=/opt/nim/.cache \
    NIM_SERVER_HOST=::

USER 10001:0
WORKDIR /opt/nim
VOLUME /opt/nim/.cache
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 \
    CMD python -m service.http.probe "${NIM_SERVER_PORT:-8000}" "${NIM_SSL_MODE:-disabled}" "$NIM_SERVER_HOST"
ENTRYPOINT ["/opt/nim/entrypoint"]
CMD ["serve"]

# Last, because they change with every commit.
ARG PYTHON_IMAGE
ARG VLLM_IMAGE
ARG TENSORRT_LLM_IMAGE
ARG FLAVOUR
ARG VERSION=0.0.0
ARG REVISION=unknown
ARG CREATED=1970-01-01T00:00:00Z
# Where the source, the documentation and the publisher of this build are.
ARG SOURCE_URL=unknown
ARG VENDOR=unknown
ARG BASE_NAME=${PYTHON_IMAGE}
ARG BASE_DIGEST=unknown
LABEL org.opencontainers.image.title="Harmonium" \
      org.opencontainers.image.description="An open, NIM-style inference microservice for OpenAI's gpt-oss models." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.created="${CREATED}" \
      org.opencontainers.image.source="${SOURCE_URL}" \
      org.opencontainers.image.url="${SOURCE_URL}" \
      org.opencontainers.image.documentation="${SOURCE_URL}" \
      org.opencontainers.image.vendor="${VENDOR}" \
      org.opencontainers.image.authors="${VENDOR}" \
      org.opencontainers.image.ref.name="${VERSION}-${FLAVOUR}" \
      org.opencontainers.image.base.name="${BASE_NAME}" \
      org.opencontainers.image.base.digest="${BASE_DIGEST}" \
      io.harmonium.flavour="${FLAVOUR}"
