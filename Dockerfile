# syntax=docker/dockerfile:1
# Any image with Python 3.11 to 3.14 and its venv module will do; the cuda flavour wants apt-get there too.
ARG BASE_IMAGE=python:3.11-slim-bookworm
# cpu, or cuda: torch with CUDA, Triton and the compiler it asks for, llama.cpp.
ARG FLAVOUR=cpu

# Empty, unless the build names a folder of wheels: --build-context wheels=FOLDER
FROM scratch AS wheels

FROM ${BASE_IMAGE} AS base-cpu
FROM ${BASE_IMAGE} AS base-cuda
COPY packaging/compiler /packaging/
RUN /packaging/compiler gcc && rm -r /packaging
ENV NVIDIA_DRIVER_CAPABILITIES=compute,utility
FROM base-${FLAVOUR} AS base

# Everything but Harmonium itself: this stage is rebuilt only when a dependency changes.
FROM base AS dependencies
ARG FLAVOUR
# Where torch comes from besides PyPI, whose own wheel brings CUDA along; empty for PyPI alone.
# Not given: PyTorch's index of CPU builds for the cpu flavour, PyPI alone for cuda.
ARG TORCH_INDEX_URL
WORKDIR /src
RUN python3 -m venv /opt/pip && python3 -m venv --without-pip /opt/harmonium
COPY packaging/pip packaging/trim packaging/dependencies.py /packaging/
COPY pyproject.toml constraints.txt ./
RUN --mount=type=bind,from=wheels,target=/wheels \
    --mount=type=secret,id=pip_cert \
    python3 /packaging/dependencies.py pyproject.toml > requirements.txt \
    && if [ "$FLAVOUR" = cpu ]; then index=https://download.pytorch.org/whl/cpu; fi \
    && PIP_FIND_LINKS=/wheels PIP_EXTRA_INDEX_URL=${TORCH_INDEX_URL-${index-}} /packaging/pip install \
       --constraint constraints.txt --requirement requirements.txt \
    && /packaging/trim

# llama.cpp, unpacked under /image as it lies in the final image; the cpu flavour goes without.
FROM base AS llama-cpu
RUN mkdir -p /image/opt/harmonium
FROM dependencies AS llama-cuda
# Semicolons between them, as CMake writes them; empty: what llama.cpp chooses; none: no CUDA, which is built in minutes.
ARG LLAMA_CUDA_ARCHITECTURES=
COPY packaging/compiler packaging/llama_cpp /packaging/
RUN --mount=type=secret,id=pip_cert \
    /packaging/compiler g++ && /packaging/llama_cpp /image "$LLAMA_CUDA_ARCHITECTURES"
FROM llama-${FLAVOUR} AS llama

# Harmonium's wheel, unpacked under /image as it lies in the final image.
FROM dependencies AS wheel
ARG FLAVOUR
# GPU architectures whose kernels the cuda flavour brings compiled; others compile them at their first start.
ARG KERNEL_ARCHITECTURES="90"
COPY packaging/finish /packaging/
COPY README.md LICENSE NOTICE ./
COPY auth auth
COPY engines engines
COPY profiles profiles
COPY service service
RUN if [ "$FLAVOUR" = cuda ]; then \
        /opt/harmonium/bin/python -m engines.native.backends.cuda.offline --architectures $KERNEL_ARCHITECTURES; \
    fi
RUN --mount=type=secret,id=pip_cert \
    /packaging/pip wheel --no-deps --wheel-dir /dist . \
    && /packaging/pip install --no-deps --no-index --no-compile --no-warn-script-location --root /image /dist/*.whl \
    && /packaging/finish /image

FROM base AS runtime
# Group 0 may write the cache, so that any uid does (OpenShift picks one).
RUN mkdir -p /opt/nim/.cache && chown 10001:0 /opt/nim/.cache && chmod 2775 /opt/nim/.cache
COPY LICENSE NOTICE /licenses/
COPY --from=dependencies /opt/harmonium /opt/harmonium
COPY --from=llama /image/opt/harmonium /opt/harmonium
COPY --from=wheel /image/opt/harmonium /opt/harmonium
COPY --from=wheel /image/opt/nim/etc /opt/nim/etc

ENV PATH=/opt/harmonium/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    PYTHONSAFEPATH=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    HOME=/opt/nim/.cache \
    USER=harmonium \
    NIM_CACHE_PATH=/opt/nim/.cache \
    NIM_SERVER_HOST=0.0.0.0

USER 10001:0
WORKDIR /opt/nim
VOLUME /opt/nim/.cache
EXPOSE 8000
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=5s --start-period=30m --retries=3 \
    CMD python -m service.http.probe "${NIM_SERVER_PORT:-8000}" "${NIM_SSL_MODE:-disabled}"
ENTRYPOINT ["harmonium"]
CMD ["serve"]

# Last, because they change with every commit.
ARG BASE_IMAGE
ARG FLAVOUR
ARG VERSION=0.0.0
ARG REVISION=unknown
LABEL org.opencontainers.image.title="Harmonium" \
      org.opencontainers.image.description="An open, NIM-style inference microservice for OpenAI's gpt-oss models." \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_IMAGE}" \
      io.harmonium.flavour="${FLAVOUR}"
