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
  for candidate in "${PYTHON:-python3}" python3.13 python3.12 python3.11; do
    if have "$candidate" && "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      "$candidate" -c 'import sys; print(sys.executable)'
      return
    fi
  done
  return 1
}

can_make_venv() { "$1" -c 'import ensurepip, venv' 2>/dev/null; }

# Debian starts a service with its package; ours are started by the tests and by Restante, never by the system.
install_debian() {
  local policy=/usr/sbin/policy-rc.d had_redis=no
  have redis-server && had_redis=yes
  if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod +x "$policy"
    trap 'rm -f /usr/sbin/policy-rc.d' EXIT
  fi
  say "installing Debian packages: $*"
  export DEBIAN_FRONTEND=noninteractive
  # The package lists may be old or absent: ask for new ones only when the first try fails.
  apt-get install -y -qq --no-install-recommends "$@" >/dev/null 2>&1 ||
    { apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/dev/null; }
  if [ "$had_redis" = no ] && have systemctl; then
    systemctl disable --quiet redis-server 2>/dev/null || true
  fi
}

need_packages() {
  local missing=()
  have redis-server || missing+=(redis-server)
  { have redis-cli && have redis-benchmark; } || missing+=(redis-tools)
  have gcc || missing+=(gcc libc6-dev)
  can_make_venv "$1" || missing+=(python3-venv)
  [ ${#missing[@]} -eq 0 ] && return
  if have apt-get && [ "$(id -u)" = 0 ]; then
    install_debian "${missing[@]}" || say "could not install ${missing[*]}; going on without"
  else
    say "missing: ${missing[*]}; install them as root, on Debian: apt-get install ${missing[*]}"
    say "without redis-server the embedded one is used and tests that need Debian's are skipped"
  fi
  can_make_venv "$1" || die "$1 cannot make a virtual environment: install python3-venv"
}

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
say "installing the locked packages"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes --only-binary :all: -r "$LOCK"
.venv/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
printf '%s' "$want" >"$stamp"
say "ready"
