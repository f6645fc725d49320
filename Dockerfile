# blockd's images: for the CPU, for NVIDIA's GPUs and for AMD's.
#
#   docker build --target cpu -t blockd:cpu . && docker run --rm -p 7117:7117 -p 7118:7118 blockd:cpu
#   docker build --target cuda -t blockd:cuda . && docker run --rm --gpus all -p 7117:7117 blockd:cuda
#   docker build --target rocm --build-arg DEBIAN=docker.io/library/debian:13-slim -t blockd:rocm . &&
#     docker run --rm --device /dev/kfd --device /dev/dri --group-add video --group-add render blockd:rocm
#
# Each takes the first GPU that it finds, or else the CPU, and logs which and why.
#
# All that a build fetches are packages of Debian and of PyPI. Behind mirrors or a proxy, hand in the files
# that name them; no image keeps them: --secret id=debian.sources,src=FILE (apt's deb822),
# --secret id=pip.conf,src=FILE, --secret id=ca.pem,src=FILE (for pip.conf: cert = /run/secrets/ca.pem).
# deploy/prove_images.sh builds and proves all three without a container engine.

ARG DEBIAN=docker.io/library/debian:12-slim

# What an image runs with, but for the programs.
FROM ${DEBIAN} AS runtime
COPY deploy/install_packages.sh /tmp/
RUN --mount=type=secret,id=debian.sources,target=/etc/apt/sources.list.d/debian.sources \
    /tmp/install_packages.sh runtime \
    && rm -rf /tmp/install_packages.sh /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log \
    && useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin blockd
ARG DEBIAN
LABEL org.opencontainers.image.title="blockd" \
      org.opencontainers.image.description="A solver service for SPD block-tridiagonal systems" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.base.name="${DEBIAN}"
USER 10001:10001
# gRPC, and Prometheus metrics over HTTP.
EXPOSE 7117 7118
# blockd drains on SIGTERM, 30 s at most (--drain_timeout): give `docker stop` more than its 10 s.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["blockctl", "info", "--quiet"]
ENTRYPOINT ["blockd", "--address=0.0.0.0", "--metrics_address=0.0.0.0"]
# Callers name themselves, and whoever reaches the port may be anybody. Arguments take this one's place: with TLS
# and client certificates or tokens it is not needed.
CMD ["--trust_caller_metadata=true"]

# What builds: compilers and libraries, and the tool that lists an image's packages.
FROM ${DEBIAN} AS tools
COPY deploy/install_packages.sh /src/deploy/
RUN --mount=type=secret,id=debian.sources,target=/etc/apt/sources.list.d/debian.sources \
    /src/deploy/install_packages.sh build sbom
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.pem \
    python3 -m venv /opt/sbom \
    && /opt/sbom/bin/pip install --no-cache-dir debsbom==0.10.2 spdx-tools==0.8.5
ENV CCACHE_DIR=/var/cache/ccache
WORKDIR /src

FROM tools AS build-cpu
COPY . /src/
RUN --mount=type=bind,from=runtime,target=/mnt --mount=type=cache,id=blockd-ccache,target=/var/cache/ccache \
    deploy/build_image.sh /mnt

FROM runtime AS cpu
COPY --from=build-cpu /opt/blockd/ /usr/local/
ARG REVISION=unknown
LABEL org.opencontainers.image.revision="${REVISION}"

# NVIDIA's compiler and its runtime, laid out as CMake looks for them. blockd links the runtime's static
# part, so that the image needs the driver alone.
FROM tools AS tools-cuda
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf --mount=type=secret,id=ca.pem \
    /opt/sbom/bin/pip install --no-cache-dir --no-deps --target=/opt/cuda \
        nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
        nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 \
    && ln -s /opt/cuda/nvidia/cu13 /usr/local/cuda \
    && ln -s lib /usr/local/cuda/lib64 \
    && ln -s libcudart.so.13 /usr/local/cuda/lib/libcudart.so
ENV PATH=${PATH}:/usr/local/cuda/bin

FROM tools-cuda AS build-cuda
COPY . /src/
RUN --mount=type=bind,from=runtime,target=/mnt --mount=type=cache,id=blockd-ccache,target=/var/cache/ccache \
    deploy/build_image.sh /mnt -DBLOCKD_CUDA=ON

FROM runtime AS cuda
# What NVIDIA's container runtime gives the container.
ENV NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /opt/blockd/ /usr/local/
ARG REVISION=unknown
LABEL org.opencontainers.image.revision="${REVISION}"

# AMD's compiler and runtime, those of Debian 13.
FROM tools AS tools-rocm
RUN --mount=type=secret,id=debian.sources,target=/etc/apt/sources.list.d/debian.sources \
    if ! grep -q '^VERSION_ID="13"' /etc/os-release; then \
      echo "the target rocm needs --build-arg DEBIAN=docker.io/library/debian:13-slim" >&2; exit 1; fi \
    && /src/deploy/install_packages.sh hip

FROM runtime AS runtime-rocm
USER 0:0
COPY deploy/install_packages.sh /tmp/
RUN --mount=type=secret,id=debian.sources,target=/etc/apt/sources.list.d/debian.sources \
    /tmp/install_packages.sh runtime-hip \
    && rm -rf /tmp/install_packages.sh /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log
USER 10001:10001

FROM tools-rocm AS build-rocm
COPY . /src/
RUN --mount=type=bind,from=runtime-rocm,target=/mnt --mount=type=cache,id=blockd-ccache,target=/var/cache/ccache \
    deploy/build_image.sh /mnt -DBLOCKD_HIP=ON "-DBLOCKD_HIP_ARCHITECTURES=gfx90a;gfx942"

FROM runtime-rocm AS rocm
COPY --from=build-rocm /opt/blockd/ /usr/local/
ARG REVISION=unknown
LABEL org.opencontainers.image.revision="${REVISION}"
