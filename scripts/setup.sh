#!/usr/bin/env bash
# Prepares a checkout: Debian packages where missing (as root only), .venv, the locked packages, the checkout itself.
# Run again it does nothing, until the lock, the project's metadata or the interpreter change.
set -euo pipefail
cd "$(dirname "$0")/.."

LOCK=requirements/dev.lock

say() { printf 'setup: %s\n' "$*" >&2; }
die() { say "$*"; exit 1; }
have() { command -v "$1" >/dev/null 2>&1; }

find_python() {
  local candidate
  for candidate in "${PYTHON:-python3}" python3.14 python3.13 python3.12 python3.11; do
    if have "$candidate" && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return
    fi
  done
  return 1
}

# Debian keeps it where only root's PATH leads.
have_rabbitmq() { have rabbitmq-server || [ -x /usr/sbin/rabbitmq-server ]; }

can_make_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# Spark 4 runs on Java 17 or newer; Spark itself looks at JAVA_HOME first.
java_is_new() {
  local said
  said=$("${JAVA_HOME:+$JAVA_HOME/bin/}java" -version 2>&1) || return 1
  [[ $said =~ version\ \"([0-9]+) ]] && [ "${BASH_REMATCH[1]}" -ge 17 ]
}

# Debian 11's default Java is too old, Debian 13 has no Java 17: the first where it exists, else the default.
java_package() {
  apt-cache show openjdk-17-jre-headless >/dev/null 2>&1 && echo openjdk-17-jre-headless || echo default-jre-headless
}

lists=old
# The package lists may be old or absent: new ones are asked for once, and only when an install fails.
renew_lists() {
  [ "$lists" = old ] || return 1
  lists=new
  apt-get update -qq
}

# Debian starts a service with its package; ours are started by the tests and by Restante, never by the system.
install_debian() {
  local policy=/usr/sbin/policy-rc.d had_redis=no had_rabbitmq=no
  have redis-server && had_redis=yes
  have_rabbitmq && had_rabbitmq=yes
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  say "installing Debian packages: $*"
  export DEBIAN_FRONTEND=noninteractive
  apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 ||
    { renew_lists && apt-get install -y -qq --no-install-recommends "$@" >/dev/null; } || return 1
  if [ "$had_redis" = no ] && have systemctl; then
    systemctl disable --quiet redis-server 2>/dev/null || true
  fi
  # Its package starts it by itself where the policy is not asked: so it is also stopped.
  if [ "$had_rabbitmq" = no ] && have_rabbitmq && have systemctl; then
    systemctl disable --now --quiet rabbitmq-server 2>/dev/null || true
  fi
}

# provide WITHOUT PACKAGE…: installs as root; else, or if that fails, says what to install and what goes without it.
provide() {
  local without=$1
  shift
  if have apt-get && [ "$(id -u)" = 0 ] && install_debian "$@"; then
    return
  fi
  say "missing: $*; as root, on Debian: apt-get install $*"
  say "without: $without"
}

need_packages() {
  local missing=()
  have redis-server || missing+=(redis-server)
  { have redis-cli && have redis-benchmark; } || missing+=(redis-tools)
  have gcc || missing+=(gcc libc6-dev)
  have curl || missing+=(curl)
  can_make_venv "$1" || missing+=(python3-venv)
  if [ ${#missing[@]} -gt 0 ]; then
    provide "the embedded Redis is used, and tests that need Debian's or a compiler are skipped" "${missing[@]}"
  fi
  can_make_venv "$1" || die "$1 cannot make a virtual environment: install python3-venv"
  java_is_new || provide "Spark does not start, and its tests are skipped" "$(java_package)"
  have chromium || provide "tests in a browser are skipped" chromium
  have_rabbitmq || provide "events over RabbitMQ cannot be tried, and their tests are skipped" rabbitmq-server
  { have node && have npm; } || provide "the dashboard is not built, and its tests are skipped" nodejs npm
}

# The lock's lines of pyspark, or of all others: pins with their hashes.
pyspark_pin() { awk '/^[^ #]/ { mine = /^pyspark==/ } mine' "$LOCK"; }
other_pins() { awk '/^[^ #]/ { mine = /^pyspark==/ } !mine' "$LOCK"; }

pip_install() { .venv/bin/python -m pip install --quiet --disable-pip-version-check "$@"; }

python=$(find_python) || die "Python 3.11 or newer is needed: install python3, or name it by PYTHON=/path/to/python3"
[ -f "$LOCK" ] || die "$LOCK is missing"

want=$(cat "$LOCK" pyproject.toml scripts/setup.sh | sha256sum | cut -c1-16)-$("$python" -V | cut -d' ' -f2)
stamp=.venv/.setup
if [ -x .venv/bin/python ] && .venv/bin/python -c '' 2>/dev/null && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ]; then
  exit 0
fi

need_packages "$python"
if ! .venv/bin/python -c 'import pip' 2>/dev/null; then
  say "making .venv with $("$python" -V)"
  rm -rf .venv
  "$python" -m venv .venv
fi
if ! .venv/bin/python -c 'import pyspark' 2>/dev/null; then
  say "installing the locked packages; pyspark is several hundred MB, so the first time takes minutes"
else
  say "installing the locked packages"
fi
other_pins | pip_install --require-hashes --only-binary :all: -r /dev/stdin
# pyspark is published as source only. It is built after the others and without isolation, by the pinned setuptools
# and wheel: an isolated build would fetch its own, unpinned.
pyspark_pin | pip_install --require-hashes --no-deps --no-build-isolation --use-pep517 -r /dev/stdin
pip_install --no-deps --no-build-isolation --editable .
printf '%s' "$want" >"$stamp"
say "ready"
