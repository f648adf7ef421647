# A node, alone unless told otherwise; compose.yaml has three and a gateway, which runs from the same image:
# docker run … tidelog gateway --bootstrap NODE:7400,NODE:7400,NODE:7400 --host 0.0.0.0 --insecure

FROM python:3.13-slim AS build
WORKDIR /src
COPY locks ./locks
COPY pyproject.toml README.md LICENSE ./
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
RUN python -m venv /opt/tidelog \
 && /opt/tidelog/bin/pip install --require-hashes --only-binary :all: -r locks/image.txt \
 && /opt/tidelog/bin/pip install --no-deps --no-index /wheel/*.whl

FROM python:3.13-slim
RUN useradd --system --uid 10001 --create-home --home-dir /var/lib/tidelog tidelog \
 && mkdir /data \
 && chown tidelog: /data
COPY --from=build /opt/tidelog /opt/tidelog
ENV PATH=/opt/tidelog/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    TIDELOG_NODE_MANAGEMENT_HOST=0.0.0.0
# A node that stands alone tells its clients to connect to 127.0.0.1, which is right for `-p 7400:7400` on one machine.
# For clients elsewhere add -e TIDELOG_NODE_ADVERTISE_HOST=NAME; in a cluster the bootstrap file has the names.
USER tidelog
WORKDIR /var/lib/tidelog
VOLUME /data
EXPOSE 7400 7400/udp 7401 8080
STOPSIGNAL SIGTERM
# With a certificate both speak TLS; that they answer is asked, and not who they are.
# A node answers at its management port. A gateway has none: nothing listens there, and it is asked at its HTTP port.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 CMD \
    python -c "import urllib.request as r; r.urlopen('http://127.0.0.1:7401/livez', timeout=2).close()" \
 || python -c "import urllib.request as r; r.urlopen('http://127.0.0.1:8080/livez', timeout=2).close()" \
 || python -c "import ssl, urllib.request as r; r.urlopen('https://127.0.0.1:7401/livez', timeout=2, context=ssl._create_unverified_context()).close()" \
 || python -c "import ssl, urllib.request as r; r.urlopen('https://127.0.0.1:8080/livez', timeout=2, context=ssl._create_unverified_context()).close()"
ENTRYPOINT ["tidelog"]
# --insecure: whoever reaches a port that is published may do everything. It is for one machine (-p 127.0.0.1:7400:7400);
# elsewhere leave it out and give the node a certificate and an administrator's key: docs/security.md
CMD ["node", "--data", "/data", "--host", "0.0.0.0", "--port", "7400", "--management-port", "7401", "--insecure"]
