# The image of the daemon. For a build that can be repeated, pin the base by digest:
#   make image BASE=debian:bookworm-slim@sha256:<digest>
ARG BASE=debian:bookworm-slim

FROM ${BASE} AS build
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv
WORKDIR /source
COPY requirements.lock requirements-build.lock ./
RUN python3 -m venv /opt/holdfast \
    && /opt/holdfast/bin/pip install --no-cache-dir --require-hashes -r requirements.lock \
    && python3 -m venv /build \
    && /build/bin/pip install --no-cache-dir --require-hashes -r requirements-build.lock
COPY pyproject.toml README.md CHANGELOG.md LICENSE ./
COPY daemon daemon
# On a node it cannot write, so its modules are compiled here; pip and its kin stay behind. By hash
# and unchecked: builders that change times of files would have every start compile them again.
RUN /build/bin/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/holdfast/bin/pip install --no-cache-dir --no-deps --no-index /wheels/*.whl \
    && /opt/holdfast/bin/pip uninstall --yes setuptools pip \
    && python3 -m compileall -q -f --invalidation-mode unchecked-hash /opt/holdfast/lib

FROM ${BASE}
ARG VERSION=unknown
LABEL org.opencontainers.image.title="holdfast" \
      org.opencontainers.image.description="Kubernetes device plugin: one holder at a time, and free means free" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# pyudev loads libudev. tini hands signals on and returns the daemon's exit code.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends libudev1 python3 tini \
    && rm -rf /var/lib/apt/lists/* /var/cache/* /var/log/*
COPY --from=build /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# With the host's pid namespace tini is not pid 1, hence -s: it reaps as a subreaper.
# Probes are Kubernetes' business, so there is no HEALTHCHECK.
ENTRYPOINT ["tini", "-s", "--", "holdfast"]
CMD ["run"]
