# blockd on the CPU. deploy/prove_dockerfile.sh runs these very steps without a container engine.
#
#   docker build -t blockd:cpu . && docker run --rm -p 7117:7117 -p 7118:7118 blockd:cpu

FROM debian:12-slim AS build
COPY deploy/install_packages.sh /src/deploy/
RUN /src/deploy/install_packages.sh build
COPY . /src/
WORKDIR /src
RUN cmake --preset deploy \
    && cmake --build --preset deploy \
    && cmake --install build/deploy --component programs --prefix /opt/blockd --strip

FROM debian:12-slim AS cpu
COPY deploy/install_packages.sh /tmp/
RUN /tmp/install_packages.sh runtime \
    && rm -rf /tmp/install_packages.sh /var/lib/apt/lists/* /var/cache/apt/* \
    && useradd --system --uid 10001 --no-create-home --shell /usr/sbin/nologin blockd
COPY --from=build /opt/blockd/bin/ /usr/local/bin/
COPY LICENSE /usr/share/doc/blockd/
USER 10001:10001
# gRPC, and Prometheus metrics over HTTP.
EXPOSE 7117 7118
# blockd drains on SIGTERM, 30 s at most (--drain_timeout): give `docker stop` more than its 10 s.
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=3s --start-period=5s CMD ["blockctl", "info", "--quiet"]
ENTRYPOINT ["blockd", "--address=0.0.0.0", "--metrics_address=0.0.0.0"]
