# A node, alone unless told otherwise; compose.yaml has three and a gateway, which runs from the same image.
# How it is built and run: docs/containers.md

# Both stages begin with it. A tag may be another image tomorrow: whoever builds for others pins what he has looked at, with
# --build-arg BASE=python:3.13-slim@sha256:... (SECURITY.md)
ARG BASE=python:3.13-slim
FROM ${BASE} AS build
WORKDIR /src
COPY locks ./locks
COPY pyproject.toml hatch_build.py README.md LICENSE ./
COPY proto ./proto
COPY clients ./clients
COPY broker ./broker
COPY gateway ./gateway
COPY spark ./spark
COPY loadtest ./loadtest
# Every package is one that locks/ names, with the hash that stands there (`make lock` writes them).
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python -m venv /opt/build \
 && /opt/build/bin/pip install --require-hashes --only-binary :all: -r locks/build.txt \
 && /opt/build/bin/python -m hatchling build -t wheel -d /wheel
# Nothing is installed into it later, so it goes without a pip of its own.
RUN python -m venv --without-pip /opt/tidelog \
 && /opt/build/bin/pip --python /opt/tidelog install --require-hashes --only-binary :all: -r locks/image.txt \
 && /opt/build/bin/pip --python /opt/tidelog install --no-deps --no-index /wheel/*.whl

FROM ${BASE}
# A number that is the same in every image, for whoever gives files of the host to it.
RUN groupadd --gid 10001 tidelog \
 && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /var/lib/tidelog --shell /usr/sbin/nologin tidelog \
 && mkdir /data /var/lib/tidelog \
 && chown tidelog: /data /var/lib/tidelog
COPY --from=build /opt/tidelog /opt/tidelog
ENV PATH=/opt/tidelog/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TIDELOG_NODE_MANAGEMENT_HOST=0.0.0.0
# A node that stands alone tells its clients to connect to 127.0.0.1, which is right for `-p 7400:7400` on one machine.
# For clients elsewhere add -e TIDELOG_NODE_ADVERTISE_HOST=NAME; in a cluster the bootstrap file has the names.
# As numbers: who asks for users other than root (runAsNonRoot of Kubernetes) sees it of those alone.
USER 10001:10001
WORKDIR /var/lib/tidelog
VOLUME /data
EXPOSE 7400 7400/udp 7401 8080
STOPSIGNAL SIGTERM
# With a certificate both speak TLS; that they answer is asked, and not who they are. Health is for everybody: no token.
# A node answers at its management port. A gateway has none: nothing listens there, and it is asked at its HTTP port.
# TLS is tried first where the environment names a certificate: who is asked in the other way writes that down.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD \
    ask() { python -c "import ssl, sys, urllib.request as r; r.urlopen(sys.argv[1], timeout=2, context=ssl._create_unverified_context()).close()" "$1"; }; \
    first=http; then=https; \
    if [ -n "$TIDELOG_NODE_TLS_CERT_FILE$TIDELOG_GATEWAY_TLS_CERT_FILE" ]; then first=https; then=http; fi; \
    ask $first://127.0.0.1:7401/livez || ask $first://127.0.0.1:8080/livez || ask $then://127.0.0.1:7401/livez || ask $then://127.0.0.1:8080/livez
ENTRYPOINT ["tidelog"]
# --insecure: whoever reaches a port that is published may do everything. It is for one machine (-p 127.0.0.1:7400:7400);
# elsewhere leave it out and give the node a certificate and an administrator's key: docs/security.md
CMD ["node", "--data", "/data", "--host", "0.0.0.0", "--port", "7400", "--management-port", "7401", "--insecure"]
