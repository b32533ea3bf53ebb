# The image of the daemon. For a build that can be repeated, pin the base by digest:
#   make image BASE=debian:bookworm-slim@sha256:<digest>
ARG BASE=debian:bookworm-slim

# What runs the daemon. pyudev loads libudev. tini hands signals on and returns the daemon's exit code.
# Gone are what no module of holdfast loads, and libraries that only such modules load. What is left
# of Python is compiled, and its source gone: a traceback has the numbers of those lines alone.
FROM ${BASE} AS python
RUN apt-get update \
    && apt-get install --yes --no-install-recommends \
        --option DPkg::Options::=--path-exclude=/usr/bin/tini-static \
        --option DPkg::Options::=--path-exclude='/usr/lib/*/libexpatw.so*' \
        --option DPkg::Options::=--path-exclude='/usr/lib/*/engines-3/*' \
        --option DPkg::Options::=--path-exclude='/usr/lib/*/ossl-modules/*' \
        libpython3-stdlib libudev1 python3-minimal tini \
    && dpkg --purge --force-depends libgssapi-krb5-2 libk5crypto3 libkeyutils1 libkrb5-3 \
        libkrb5support0 libncursesw6 libnsl2 libreadline8 libtirpc-common libtirpc3 media-types \
        readline-common \
    && cd /usr/lib/python3.*/ \
    && rm -rf curses dbm distutils doctest.py lib2to3 multiprocessing pydoc.py pydoc_data test turtle.py \
        unittest venv xml xmlrpc \
        _osx_support.py _pydecimal.py _pyio.py _sysconfigdata* bdb.py cProfile.py modulefinder.py pdb.py \
        pickletools.py plistlib.py profile.py pstats.py pyclbr.py statistics.py symtable.py tarfile.py \
        trace.py zipapp.py asyncio/proactor* asyncio/windows* concurrent/futures/process.py \
        aifc.py chunk.py imghdr.py sndhdr.py sunau.py wave.py \
        asynchat.py asyncore.py cgi*.py ftplib.py imaplib.py mailbox.py mailcap.py nntplib.py poplib.py \
        smtp*.py telnetlib.py webbrowser.py xdrlib.py email/_header_value* email/contentmanager.py \
        email/headerregistry.py email/policy.py http/cookie* logging/config.py logging/handlers.py \
        encodings/big5* encodings/cp* encodings/euc* encodings/gb* encodings/hz* encodings/iso* \
        encodings/johab* encodings/ko* encodings/kz* encodings/mac* encodings/shift* \
        lib-dynload/*codec* lib-dynload/*curses* lib-dynload/*test* lib-dynload/*xx* lib-dynload/_dbm* \
        lib-dynload/audioop* lib-dynload/nis* lib-dynload/ossaudio* lib-dynload/readline* \
    && python3 -m compileall -q -b "$PWD" \
    && find . -name __pycache__ -prune -exec rm -r {} + \
    && find . -name '*.py' -delete \
    && rm -rf /usr/share/python3 /var/lib/apt/lists/* /var/lib/dpkg/*-old /var/lib/dpkg/info/*.symbols /var/cache/* \
        /var/log/*

FROM python AS build
# pip, and all of Python for it. Unpacked: apt installs nothing where it misses libraries.
RUN cd /tmp && apt-get update && python=lib$(basename /usr/lib/python3.*) \
    && apt-get download ca-certificates python3-pip-whl $python-minimal $python-stdlib \
    && for package in *.deb; do dpkg-deb -x "$package" / || exit 1; done \
    && cat /usr/share/ca-certificates/mozilla/*.crt > /etc/ssl/certs/ca-certificates.crt \
    && rm -r *.deb /var/lib/apt/lists
COPY requirements.lock requirements-build.lock /source/
# pip's own settings and certificates come from outside where a site needs them (deploy/README.md).
# The C part of PyYAML is for loaders that holdfast does not use, gRPC's certificates for TLS.
RUN --mount=type=secret,id=pip.conf,target=/etc/pip.conf \
    --mount=type=secret,id=certificates,target=/etc/ssl/certs/ca-certificates.crt \
    cd /source && ln -s /usr/share/python-wheels/pip-*.whl /pip.whl \
    && python3 -m venv --without-pip /build \
    && /build/bin/python /pip.whl/pip install --no-compile --require-hashes -r requirements-build.lock \
    && python3 -m venv --without-pip /opt/holdfast \
    && /opt/holdfast/bin/python /pip.whl/pip install --no-compile --require-hashes -r requirements.lock \
    && cd /opt/holdfast \
    && python3 -m compileall -q -b /opt/holdfast/lib \
    && find lib -name '*.py' -delete -o -name '*.pyi' -delete \
    && cd lib/*/site-packages \
    && rm -r example.pyc google/protobuf/testdata grpc/_cython/_c* grpc/beta grpc/experimental \
        grpc/framework yaml/*.so ../../../bin/*ctivate* ../../../include
COPY pyproject.toml README.md CHANGELOG.md LICENSE /source/
COPY daemon /source/daemon
# On a node it cannot write, so its modules are compiled here. By hash and unchecked: builders that
# change times of files would have every start compile them again.
RUN cd /source \
    && /build/bin/python /pip.whl/pip wheel --no-deps --no-build-isolation --wheel-dir /wheels . \
    && /opt/holdfast/bin/python /pip.whl/pip install --no-compile --no-deps --no-index /wheels/*.whl \
    && cd /opt/holdfast/lib/*/site-packages/holdfast \
    && python3 -m compileall -q --invalidation-mode unchecked-hash "$PWD" \
    && find . -name '*.pyi' -delete \
    && chmod -R a-w /opt/holdfast

FROM python
ARG VERSION=unknown
LABEL org.opencontainers.image.title="holdfast" \
      org.opencontainers.image.description="Kubernetes device plugin: one holder at a time, and free means free" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/holdfast /opt/holdfast
ENV PATH=/opt/holdfast/bin:$PATH PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1
# With the host's pid namespace tini is not pid 1, hence -s: it reaps as a subreaper.
# Probes are Kubernetes' business, so there is no HEALTHCHECK.
ENTRYPOINT ["tini", "-s", "--", "holdfast"]
CMD ["run"]
