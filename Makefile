# fabricmgr: build, test, demo. `make help` lists what a person may type.
# Sources are found by folder: a new .c file in a known folder is built without editing this file.
# Objects carry their dependencies (-MMD), and change of flags rebuilds (build/$(VARIANT)/flags).

SHELL := /bin/bash
VERSION := 0.1.0
VARIANT ?= release
BUILD := build/$(VARIANT)
PREFIX ?= /usr/local
CACHE ?= $(if $(XDG_CACHE_HOME),$(XDG_CACHE_HOME),$(HOME)/.cache)/fabricmgr

CC ?= cc
ifeq ($(origin CC),default)
CC := $(if $(filter clang,$(VARIANT)),clang-14,gcc)
endif
CCACHE := $(shell command -v ccache 2>/dev/null)
# Debian packages: what the build needs, and what the tests need besides.
DEPS_BUILD := gcc libc6-dev ccache liburing-dev libmicrohttpd-dev libjansson-dev libpcre2-dev \
	libutf8proc-dev libinih-dev libncurses-dev libisal-dev libnuma-dev libssl-dev liblzma-dev systemtap-sdt-dev python3 python3-venv ca-certificates
DEPS_TEST := check libsubunit-dev python3-pytest python3-yaml clang-14 libclang-rt-14-dev clang-tidy-14 cppcheck strace procps spin gdb redis-tools \
	python3-redis libhiredis-dev g++ pkgconf man-db
# The programs that benchmarks compare with: to build llama.cpp, redis-server, fio.
DEPS_PEERS := g++ cmake make redis-server redis-tools fio
# Virtual machines and kernel modules for them.
DEPS_VM := qemu-system-x86 busybox-static kmod xz-utils zstd libelf1 sparse perl libibverbs-dev ibverbs-providers iproute2
SUDO := $(if $(filter 0,$(shell id -u)),,sudo)

WARN := -Wall -Wextra -Werror -Wmissing-prototypes -Wstrict-prototypes -Wpointer-arith -Wvla
OPT_release := -O2 -g
OPT_asan := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
# A second compiler: other warnings, other contraction rules, the same bits.
OPT_clang := -O2 -g
OPT_tsan := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
# Kill points for the crash tests (libfabricmgr/include/fabricmgr_kill_point.h).
OPT_kill := -O2 -g -DFM_KILL_POINTS
OPT := $(OPT_$(VARIANT))
# Kernels: as fast as they get; for sanitizers, a quarter of the time to compile (see kernels/cpu/inline.h).
OPT_KERNELS := $(if $(filter asan tsan,$(VARIANT)),-O2,-O3)
ifeq ($(OPT),)
$(error VARIANT=$(VARIANT) is not known: use release, asan, tsan, clang or kill)
endif
# -ffp-contract=off: a multiply and an add fuse only where the source says fmaf (the arithmetic contract).
CFLAGS_ALL := -std=gnu11 $(OPT) $(WARN) -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno \
	-D_GNU_SOURCE -DFM_VERSION='"$(VERSION)"' $(CFLAGS)
INC_LIB := -Ilibfabricmgr/include -Ikmod/uapi -Ilibfabricmgr
INC_ENGINE := -Ilibfabricmgr/include -Ikmod/uapi -Ikernels -Iengine -Itools
INC_TOOLS := -Ilibfabricmgr/include -Ikmod/uapi -Itools
LDLIBS_LIB := -luring -lcrypto -lisal -lnuma -lpthread
LDLIBS_ENGINE := -lmicrohttpd -ljansson -lpcre2-8 -lutf8proc -lm $(LDLIBS_LIB)
LDFLAGS_ALL := $(OPT) -Wl,--as-needed -Wl,-z,relro,-z,now $(LDFLAGS)

src = $(sort $(foreach d,$(1),$(wildcard $(d)/*.c)))
LIB_SRC := $(call src,libfabricmgr/base libfabricmgr/core libfabricmgr/mem libfabricmgr/tier libfabricmgr/pool)
KERNEL_SRC := $(call src,kernels/cpu)
ENGINE_SRC := $(filter-out engine/main.c,$(call src,engine engine/model engine/text engine/core engine/http engine/worker)) tools/command_line.c
UNIT_SRC := $(call src,tests/unit)
TOOLS := fabricmgrd fabricctl fabricmgr-holder
SIM_SRC := $(filter-out %/main.c,$(call src,tools/fabric-sim)) tools/command_line.c
obj = $(patsubst %.c,$(BUILD)/%.o,$(1))

LIB_OBJ := $(call obj,$(LIB_SRC))
KERNEL_OBJ := $(call obj,$(KERNEL_SRC))
ENGINE_OBJ := $(call obj,$(ENGINE_SRC))
UNIT_BIN := $(patsubst tests/unit/test_%.c,$(BUILD)/tests/unit/%,$(filter tests/unit/test_%.c,$(UNIT_SRC)))
UNIT_HELP_OBJ := $(call obj,$(filter-out tests/unit/test_%.c,$(UNIT_SRC)))
# VARIANT=tsan: all mappings of one memfd in a process have one address (tests/tools/one_mapping.c).
comma := ,
TSAN_OBJ := $(if $(filter tsan,$(VARIANT)),$(BUILD)/tests/tools/one_mapping.o)
TSAN_LINK := $(if $(TSAN_OBJ),-Wl$(comma)--wrap=mmap -Wl$(comma)--wrap=munmap)
BIN := $(addprefix $(BUILD)/bin/,$(TOOLS) fabric-sim fabric-engine)

.DEFAULT_GOAL := all
.PHONY: all help deps deps-test model demo check check-long check-long-asan check-formats fuzz clean install programs units plants plant_race FORCE check-kills tsan-units \
	deps-vm kmod kmod-plants vm-programs check-vm check-vm-debug debug-kernel
.DELETE_ON_ERROR:

all: programs

help:
	@printf '%s\n' 'fabricmgr $(VERSION)' '' \
	'  make            build the programs into $(BUILD)/bin (needs: make deps)' \
	'  make deps       install the Debian packages that the build needs (root or sudo)' \
	'  make model      fetch the demo model and print its path (MODEL=/path/x.gguf uses another)' \
	'  make demo       the whole system on this machine, answering questions (KEEP=1 leaves it running)' \
	'  make check      every test; installs what it needs' \
	'  make check-long 5000 random mixes of requests (MIXES), every case of same bits, check-deb' \
	'                  and what one tenant learns of another by timing (ISOLATION_PROBES)' \
	'  make bench      every benchmark; make bench-NAME one of: $(BENCHES)' \
	'                  (STRICT=1 fails when a goal is missed; BENCH_ARGS="--pairs 9" and the like)' \
	'  make peers      what they compare with (llama.cpp, Mooncake, redis-server, fio) into build/peers' \
	'  make check-alloc  every allocation of requests and starts fails, one by one' \
	'  make check-kills  kill processes at every step of every protocol: KILLS=500 NVME_KILLS=500 SEED=1' \
	'  make check-model  the lease protocol searched by spin, as it is and with planted faults' \
	'  make deb        Debian packages into build/deb; make check-deb installs, upgrades and purges them in a fresh root' \
	'  make check-browser  page of the daemon in a headless Chromium' \
	'  make sizing     the figures of Documentation/sizing.md: overheads, blocks, hit rates (SIZING_ARGS)' \
	'  make kmod       the kernel module for the kernels of the tests (KMOD_KERNELS) into build/kmod; for one of' \
	'                  your own: make -C kmod KDIR=/path/to/its/build' \
	'  make check-vm   the module in virtual machines with Debian 12 kernels 6.1 and 6.12 (ONLY=program)' \
	'  make check-vm-debug  the same under KASAN, lockdep and kmemleak (DEBUG_KERNEL=folder; make debug-kernel)' \
	'  make model-gemma  fetch Gemma 3 270M (its terms are shown) and print its path; make check-gemma tests on it' \
	'  make families-reference  logits of small models of each architecture, by Transformers' \
	'  make check-formats  weights in every format against the gguf package' \
	'  make fuzz       the fuzz targets, FUZZ_SECONDS (10) each' \
	'  make install    DESTDIR= PREFIX=$(PREFIX) LIBDIR=PREFIX/lib; make uninstall takes the same' \
	'  make install-dkms  the module'"'"'s sources into DKMSDIR=$(DKMSDIR), for dkms install fabricmgr/$(VERSION)' \
	'  make clean      remove build/' '' \
	'VARIANT=release|asan|tsan|clang|kill chooses the build; objects stand in build/$$VARIANT.'

# $(call install_missing,PACKAGES): asks dpkg first, so that a complete machine needs no network.
install_missing = missing=""; for p in $(1); do \
	dpkg-query -W -f='$${Status}' $$p 2>/dev/null | grep -q 'ok installed' || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then echo "installing:$$missing"; \
	$(SUDO) apt-get update -qq && $(SUDO) env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
		--no-install-recommends $$missing >/dev/null || \
		{ echo "could not install$$missing: as root or with sudo, run: apt-get install$$missing" >&2; exit 1; }; fi

deps:
	@$(call install_missing,$(DEPS_BUILD))
deps-test: deps
	@$(call install_missing,$(DEPS_TEST))
deps-vm: deps
	@$(call install_missing,$(DEPS_VM))

model:
	@MODEL='$(MODEL)' CACHE='$(CACHE)' bash tools/fetch-model.sh

# The recursive make sees compilers and headers that `deps` has only just installed.
demo: deps
	@$(MAKE) --no-print-directory -s -j$$(nproc) programs
	@path=$$(MODEL='$(MODEL)' CACHE='$(CACHE)' bash tools/fetch-model.sh | tail -n 1) && [ -n "$$path" ] && \
		exec python3 -I -S tools/demo.py --bin $(BUILD)/bin --model "$$path"

# Benchmarks: tests/bench/NAME.py. JSON lines on standard output, a table on standard error.
BENCHES := $(filter-out frame mooncake_store test_%,$(patsubst tests/bench/%.py,%,$(wildcard tests/bench/*.py)))
BENCHES_WITH_PEERS := generate match nvme put_get resp

.PHONY: peers bench
peers: deps
	@$(call install_missing,$(DEPS_PEERS)) >&2
	@CACHE='$(CACHE)' bash tests/bench/peers.sh

bench:
	@status=0; for name in $(BENCHES); do $(MAKE) --no-print-directory -s bench-$$name || status=1; done; \
		exit $$status

$(addprefix bench-,$(BENCHES_WITH_PEERS)): peers
# Before `deps`: a wrong name installs and builds nothing.
bench-%:
	@echo 'make bench-$*: there is no such benchmark: choose one of: $(BENCHES)' >&2; exit 2
$(addprefix bench-,$(BENCHES)): bench-%: deps FORCE
	@$(MAKE) --no-print-directory -s -j$$(nproc) programs $(addprefix $(BUILD)/tests/bench/,pool_figures index_figures nvme_figures product_figures memory_figures page_figures resp_figures) >&2
	@path=$$(MODEL='$(MODEL)' CACHE='$(CACHE)' bash tools/fetch-model.sh | tail -n 1) && [ -n "$$path" ] && \
		STRICT='$(STRICT)' exec python3 -B tests/bench/$*.py --bin $(BUILD)/bin --model "$$path" \
		$(if $(filter $*,$(BENCHES_WITH_PEERS)),--peers build/peers) $(BENCH_ARGS)

check: deps-test
	@$(MAKE) --no-print-directory -s -j$$(nproc) programs units plants
	@for variant in asan clang; do \
		$(MAKE) --no-print-directory -s -j$$(nproc) VARIANT=$$variant programs units || exit 1; done
	@$(MAKE) --no-print-directory -s -j$$(nproc) VARIANT=kill programs
	@$(MAKE) --no-print-directory -s -j$$(nproc) VARIANT=tsan programs tsan-units
	@path=$$(MODEL='$(MODEL)' CACHE='$(CACHE)' bash tools/fetch-model.sh | tail -n 1) && [ -n "$$path" ] && \
		FABRICMGR_TEST_MODEL="$$path" FUZZ_SECONDS=$${FUZZ_SECONDS:-10} exec python3 tests/run.py

check-long: deps-test
	@$(MAKE) --no-print-directory -s -j$$(nproc) programs units
	@MIXES=$${MIXES:-5000} $(BUILD)/tests/unit/mixes
	@SAME_BITS_ALL=1 $(BUILD)/tests/unit/same_bits
	@TENANT_STEPS=300000 $(BUILD)/tests/unit/tenants
	@$(MAKE) --no-print-directory -s check-long-asan
	@ISOLATION_PROBES=$${ISOLATION_PROBES:-10000} /usr/bin/python3 -m pytest -q -rA tests/process/test_isolation.py
	@$(MAKE) --no-print-directory -s check-deb

# The real model under ASan and UBSan: minutes.
check-long-asan: deps-test
	@$(MAKE) --no-print-directory -s -j$$(nproc) VARIANT=asan units
	@path=$$(MODEL='$(MODEL)' CACHE='$(CACHE)' bash tools/fetch-model.sh | tail -n 1) && [ -n "$$path" ] && \
		for unit in model model_reference; do FABRICMGR_TEST_MODEL="$$path" MODEL_ALL=1 \
			CK_TIMEOUT_MULTIPLIER=12 build/asan/tests/unit/$$unit || exit 1; done

# The kernel module: built for each kernel in a copy of its sources, for kbuild writes beside them. The
# kernels are fetched once into CACHE/kernels. For the kernel of this machine: make -C kmod.
KMOD_KERNELS ?= 6.1 6.12
DEBUG_KERNEL ?=
kernel_folder = CACHE='$(CACHE)' DEBUG_KERNEL='$(DEBUG_KERNEL)' python3 -B tests/vm/kernels.py fetch
kmod: deps-vm
	@for kernel in $(KMOD_KERNELS); do $(MAKE) --no-print-directory -s kmod-$$kernel || exit 1; done
kmod-%: FORCE
	@folder=$$($(kernel_folder) $*) && for part in $(if $(wildcard kmod/Kbuild),kmod) tests/vm/modules; do \
		to=build/$$( [ $$part = kmod ] && echo kmod || echo vm-modules)/$*; mkdir -p $$to && \
		echo "  KMOD  $$to" && cp -ru --preserve=timestamps $$part/. $$to/ && \
		$(MAKE) --no-print-directory -s -C $$folder/build M=$(CURDIR)/$$to CONFIG_DEBUG_INFO_BTF_MODULES= W=1 C=1 CF=-Wsparse-error KCFLAGS=-Werror modules || exit 1; done

# The module with one planted fault each, for the tests to find (tests/vm/plants.h).
KMOD_PLANTS := $(shell grep -o 'FM_PLANT_[A-Z_]*' tests/vm/plants.h | sed 's/FM_PLANT_//; /^$$/d' | sort -u)
kmod-plants: deps-vm
	@folder=$$($(kernel_folder) 6.1) && for plant in $(KMOD_PLANTS); do to=build/kmod-plants/6.1/$$plant; mkdir -p $$to && \
		cp -ru --preserve=timestamps kmod/. $$to/ && $(MAKE) --no-print-directory -s -C $$folder/build M=$(CURDIR)/$$to \
		CONFIG_DEBUG_INFO_BTF_MODULES= KCFLAGS="-include $(CURDIR)/tests/vm/plants.h -DFM_PLANT_$$plant" modules || exit 1; done

# Tests in virtual machines: tests/vm/tests/NAME.c is a program that prints TAP; what several of them use is in tests/vm/lib.
VM_BIN := $(patsubst tests/vm/tests/%.c,$(BUILD)/tests/vm/%,$(wildcard tests/vm/tests/*.c))
.SECONDARY: $(patsubst tests/%.c,$(BUILD)/tests/%.o,$(wildcard tests/vm/tests/*.c))
vm-programs: $(VM_BIN)
$(BUILD)/tests/vm/%: $(BUILD)/tests/vm/tests/%.o $(call obj,$(call src,tests/vm/lib)) $(BUILD)/libfabricmgr.a
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	@$(CC) $(LDFLAGS_ALL) -o $@ $^ -lm -libverbs $(LDLIBS_LIB)

check-vm: KMOD_KERNELS = 6.1 6.12
check-vm-debug: KMOD_KERNELS = $(if $(DEBUG_KERNEL)$(wildcard $(CACHE)/kernels/debug-own/release),debug)
# The pool's own process tests run there, too: they want all programs, and pytest.
check-vm: VM_WANTS = programs
check-vm: kmod-plants deps-test
check-vm check-vm-debug: deps-vm
	@$(MAKE) --no-print-directory -s -j$$(nproc) vm-programs $(BUILD)/bin/fabricmgrd $(VM_WANTS)
	@for kernel in $(KMOD_KERNELS); do $(MAKE) --no-print-directory -s -j$$(nproc) kmod-$$kernel || exit 1; done
	@CACHE='$(CACHE)' DEBUG_KERNEL='$(DEBUG_KERNEL)' python3 -B tests/vm/check.py $(or $(KMOD_KERNELS),debug) $(addprefix --only ,$(ONLY))

# The debug kernel of tests/vm/debug.config, from Debian's sources: 40 minutes of a processor.
DEPS_DEBUG_KERNEL := flex bison bc libelf-dev libssl-dev xz-utils
debug-kernel: deps-vm
	@$(call install_missing,$(DEPS_DEBUG_KERNEL))
	@CACHE='$(CACHE)' python3 -B tests/vm/kernels.py build debug

# The daemon's page in a headless Chromium.
DEPS_BROWSER := chromium chromium-driver fonts-dejavu-core
check-browser: deps-test
	@$(call install_missing,$(DEPS_BROWSER))
	@$(MAKE) --no-print-directory -s -j$$(nproc) programs
	@/usr/bin/python3 -B tests/browser/check_page.py

# The figures of Documentation/sizing.md.
.PHONY: sizing
sizing: deps
	@$(MAKE) --no-print-directory -s -j$$(nproc) programs >&2
	@python3 -B tools/sizing.py $(SIZING_ARGS)

# KILLS (50), NVME_KILLS (60) and SEED (1) choose how long and which.
check-kills: deps-test
	@$(MAKE) --no-print-directory -s -j$$(nproc) VARIANT=kill programs
	@python3 tests/run.py --only kills

# Every allocation fails once; `make check` takes every k-th (ALLOC_SECONDS a test).
.PHONY: check-alloc
check-alloc: deps-test
	@$(MAKE) --no-print-directory -s -j$$(nproc) programs units
	@ALLOC_ALL=1 /usr/bin/python3 -m pytest -q -p no:cacheprovider tests/process/test_out_of_memory.py

.PHONY: check-model
check-model: deps-test
	@python3 tests/model/run.py

check-formats: deps-test
	@$(MAKE) --no-print-directory -s -j$$(nproc) units
	@/usr/bin/python3 -m pytest -q -rs -p no:cacheprovider tests/process/test_formats.py

# What Transformers gives, for the small models of tests/unit/test_families.c and for Gemma 3: committed, made anew by these (3 GB of packages).
REFERENCE := build/reference
.PHONY: families-reference gemma-reference reference-venv model-gemma check-gemma
reference-venv: deps-test
	@mkdir -p $(REFERENCE) && { [ -x $(REFERENCE)/venv/bin/pip ] || python3 -m venv $(REFERENCE)/venv; }
	@$(REFERENCE)/venv/bin/pip --disable-pip-version-check install -q -r tests/data/reference-requirements.txt

families-reference: reference-venv
	@$(MAKE) --no-print-directory -s -j$$(nproc) $(BUILD)/tests/unit/families
	@rm -rf $(REFERENCE)/families && mkdir -p $(REFERENCE)/families
	@FAMILIES_WRITE=$(REFERENCE)/families $(BUILD)/tests/unit/families
	@$(REFERENCE)/venv/bin/python tests/data/make_family_reference.py $(REFERENCE)/families tests/data/families-reference.json.gz

gemma-reference: reference-venv
	@path=$$(MODEL= CACHE='$(CACHE)' bash tools/fetch-model.sh gemma3 | tail -n 1) && [ -n "$$path" ] && \
		$(REFERENCE)/venv/bin/python -B tests/data/make_gemma_reference.py "$$path" tests/data/gemma3-270m-q4_k_m-reference.json.gz

# Gemma 3 270M: under its own terms, so nothing fetches it unasked.
model-gemma:
	@MODEL= CACHE='$(CACHE)' bash tools/fetch-model.sh gemma3
check-gemma: deps-test
	@$(MAKE) --no-print-directory -s -j$$(nproc) units
	@path=$$(MODEL= CACHE='$(CACHE)' bash tools/fetch-model.sh gemma3 | tail -n 1) && [ -n "$$path" ] && \
		FABRICMGR_TEST_GEMMA="$$path" $(BUILD)/tests/unit/gemma

fuzz: deps-test
	@python3 tests/run.py --only fuzz

# Everything that install puts under PREFIX, and uninstall takes away.
LIBDIR ?= $(PREFIX)/lib
MAN_PAGES := $(wildcard Documentation/man/*.[1-8])
MAN_LINKS := $(addsuffix .3,$(shell grep -o 'fm_[a-z0-9_]*' libfabricmgr/fabricmgr.map))
COMPLETIONS := $(notdir $(wildcard packaging/completion/*))
MAN_TO := $(PREFIX)/share/man
DOC_TO := $(PREFIX)/share/doc/fabricmgr
EXAMPLES := $(wildcard packaging/etc/*.conf packaging/etc/*.env packaging/prometheus/*.yaml packaging/grafana/*.json)
COMPLETION_TO := $(PREFIX)/share/bash-completion/completions
# For systemd: units from .in files, then whole files as TARGET:SOURCE.
UNITS := $(patsubst packaging/systemd/%.in,%,$(wildcard packaging/systemd/*.service.in))
UNITDIR ?= $(PREFIX)/lib/systemd/system
UDEVDIR ?= $(PREFIX)/lib/udev/rules.d
SYSTEM_FILES := $(PREFIX)/lib/sysusers.d/fabricmgr.conf:fabricmgr.sysusers $(PREFIX)/lib/tmpfiles.d/fabricmgr.conf:fabricmgr.tmpfiles \
	$(UDEVDIR)/60-fabricmgr.rules:60-fabricmgr.rules
man_path = $(MAN_TO)/man$(subst .,,$(suffix $(1)))/$(notdir $(1))
INSTALLED := $(addprefix $(PREFIX)/bin/,$(notdir $(BIN))) $(PREFIX)/include/fabricmgr.h \
	$(LIBDIR)/libfabricmgr.so $(LIBDIR)/libfabricmgr.so.0 $(LIBDIR)/libfabricmgr.so.$(VERSION) \
	$(LIBDIR)/pkgconfig/fabricmgr.pc $(addprefix $(COMPLETION_TO)/,$(COMPLETIONS)) \
	$(addprefix $(UNITDIR)/,$(UNITS)) $(foreach file,$(SYSTEM_FILES),$(firstword $(subst :, ,$(file)))) \
	$(addprefix $(DOC_TO)/,runbook.md $(notdir $(EXAMPLES))) $(foreach page,$(MAN_PAGES) $(MAN_LINKS),$(call man_path,$(page)))

install: programs
	install -D -m 0755 -t $(DESTDIR)$(PREFIX)/bin $(BIN)
	install -D -m 0755 $(BUILD)/libfabricmgr.so $(DESTDIR)$(LIBDIR)/libfabricmgr.so.$(VERSION)
	ln -sf libfabricmgr.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libfabricmgr.so.0
	ln -sf libfabricmgr.so.0 $(DESTDIR)$(LIBDIR)/libfabricmgr.so
	install -D -m 0644 -t $(DESTDIR)$(PREFIX)/include libfabricmgr/include/fabricmgr.h
	install -d $(DESTDIR)$(LIBDIR)/pkgconfig
	sed 's|@PREFIX@|$(PREFIX)|; s|@LIBDIR@|$(patsubst $(PREFIX)/%,$${prefix}/%,$(LIBDIR))|; s|@VERSION@|$(VERSION)|' \
		packaging/fabricmgr.pc.in > $(DESTDIR)$(LIBDIR)/pkgconfig/fabricmgr.pc
	install -D -m 0644 -t $(DESTDIR)$(COMPLETION_TO) $(addprefix packaging/completion/,$(COMPLETIONS))
	install -D -m 0644 -t $(DESTDIR)$(DOC_TO) Documentation/runbook.md $(EXAMPLES)
	install -d $(DESTDIR)$(UNITDIR)
	@for unit in $(UNITS); do sed 's|@BIN@|$(PREFIX)/bin|; s|@DOC@|$(DOC_TO)|' packaging/systemd/$$unit.in \
		> $(DESTDIR)$(UNITDIR)/$$unit || exit 1; done
	@for file in $(SYSTEM_FILES); do install -D -m 0644 packaging/systemd/$${file#*:} \
		$(DESTDIR)$${file%%:*} || exit 1; done
	@for page in $(MAN_PAGES); do \
		install -D -m 0644 -t $(DESTDIR)$(MAN_TO)/man$${page##*.} $$page || exit 1; done
	@for link in $(MAN_LINKS); do echo '.so man3/fabricmgr.3' > $(DESTDIR)$(MAN_TO)/man3/$$link || exit 1; done
	@# So that programs find the library at once; a package (DESTDIR) leaves that to its own scripts.
	@if [ -z '$(DESTDIR)' ] && [ "$$(id -u)" = 0 ]; then PATH="$$PATH:/sbin" ldconfig; fi

# The module's sources, for dkms: `dkms install fabricmgr/$(VERSION)` builds and installs it then.
DKMSDIR ?= /usr/src
DKMS_TO = $(DESTDIR)$(DKMSDIR)/fabricmgr-$(VERSION)
.PHONY: install-dkms
install-dkms:
	install -D -m 0644 -t $(DKMS_TO) $(wildcard kmod/*.c kmod/*.h) kmod/Kbuild kmod/Makefile
	install -D -m 0755 -t $(DKMS_TO) $(wildcard kmod/*.sh)
	install -D -m 0644 -t $(DKMS_TO)/uapi kmod/uapi/fabricmgr.h
	sed 's|#MODULE_VERSION#|$(VERSION)|' packaging/dkms/dkms.conf > $(DKMS_TO)/dkms.conf

.PHONY: uninstall
uninstall:
	rm -f $(addprefix $(DESTDIR),$(INSTALLED))

# Debian packages, into build/deb: the sources (as git knows them, without it all but build/) are copied
# and built there. DEB_VERSION names another version, for a test of the upgrade.
DEPS_DEB := build-essential debhelper dh-dkms lintian fakeroot
DEPS_CHECK_DEB := debootstrap systemd-container
DEB_VERSION ?= $(VERSION)
DEB_MAINTAINER ?= fabricmgr maintainers <maintainers@fabricmgr.invalid>
DEB := build/deb/$(DEB_VERSION)
.PHONY: deb check-deb check-browser
deb: deps
	@$(call install_missing,$(DEPS_DEB))
	@rm -rf $(DEB) && mkdir -p $(DEB)/fabricmgr
	@{ git ls-files -co --exclude-standard -z 2>/dev/null || find . -name build -prune -o -name .git -prune -o -type f -print0; } | \
		xargs -0 -r ls -d 2>/dev/null | tar -c -T - | tar -x -C $(DEB)/fabricmgr
	@cp -r packaging/debian $(DEB)/fabricmgr/debian
	@cd $(DEB)/fabricmgr/debian && sed -i 's|@MAINTAINER@|$(DEB_MAINTAINER)|' control && \
		sed 's|@VERSION@|$(DEB_VERSION)|; s|@UPSTREAM@|$(DEB_VERSION)|; s|@MAINTAINER@|$(DEB_MAINTAINER)|' changelog.in | \
		sed "s|@DATE@|$$(date -R -d @$${SOURCE_DATE_EPOCH:-$$(git log -1 --format=%ct 2>/dev/null || date +%s)})|" > changelog && rm changelog.in
	@cd $(DEB)/fabricmgr && MAKEFLAGS= DEB_BUILD_OPTIONS=noautodbgsym CCACHE_DIR="$$(ccache --get-config cache_dir 2>/dev/null)" dpkg-buildpackage -b -us -uc -j$$(nproc) >../build.log 2>&1 || \
		{ tail -n 40 ../build.log >&2; exit 1; }
	@rm -rf $(DEB)/fabricmgr && ls $(DEB)/*.deb

# They are installed, used, upgraded, removed and purged in a fresh Debian 12 with a systemd of its own.
check-deb:
	@$(call install_missing,$(DEPS_CHECK_DEB))
	@$(MAKE) --no-print-directory -s deb DEB_VERSION=0.0.9
	@$(MAKE) --no-print-directory -s deb
	@$(SUDO) python3 -B tests/packages/check_deb.py --cache '$(CACHE)' build/deb/0.0.9 build/deb/$(VERSION)

programs: $(BUILD)/libfabricmgr.so $(BIN)
units: $(UNIT_BIN) $(BUILD)/tests/hit_timing $(if $(filter release,$(VARIANT)),$(addprefix $(BUILD)/tests/,fail_alloc.so bench/pool_figures bench/memory_figures))
# Threads of one process: server and clients.
tsan-units: $(addprefix $(BUILD)/tests/unit/,pool_server pool_remove pool_copy pool_limits queue groups layers client_life adopted) plant_race


$(BUILD)/flags: FORCE
	@mkdir -p $(@D); printf '%s\n' '$(CC) $(subst ','\'',$(CFLAGS_ALL) $(LDFLAGS_ALL))' | cmp -s - $@ || \
		printf '%s\n' '$(CC) $(subst ','\'',$(CFLAGS_ALL) $(LDFLAGS_ALL))' > $@

# The list of sources: an archive whose member was deleted is made anew.
$(BUILD)/sources: FORCE
	@mkdir -p $(@D); printf '%s\n' '$(LIB_SRC) $(KERNEL_SRC) $(ENGINE_SRC) $(SIM_SRC)' | cmp -s - $@ || \
		printf '%s\n' '$(LIB_SRC) $(KERNEL_SRC) $(ENGINE_SRC) $(SIM_SRC)' > $@

$(BUILD)/libfabricmgr/%.o: libfabricmgr/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  CC    $<"
	@$(CCACHE) $(CC) $(CFLAGS_ALL) $(INC_LIB) -MMD -MP -c $< -o $@

# Each instruction-set path is a file of its own; only the dispatcher may call into it.
ISA_avx2 := -mavx2 -mfma -mf16c
ISA_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi -mfma -mf16c -mprefer-vector-width=512
ISA_amx := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi -mfma -mf16c -mprefer-vector-width=512 -mamx-tile -mamx-int8
# What a file of kernels may use, by its name.
ISA_OF = $(if $(findstring amx,$<),$(ISA_amx),$(if $(findstring avx512,$<),$(ISA_avx512),$(if $(findstring avx2,$<),$(ISA_avx2))))
$(BUILD)/kernels/%.o: kernels/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  CC    $<"
	@$(CCACHE) $(CC) $(CFLAGS_ALL) $(OPT_KERNELS) $(INC_ENGINE) $(ISA_OF) -MMD -MP -c $< -o $@

$(BUILD)/engine/%.o: engine/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  CC    $<"
	@$(CCACHE) $(CC) $(CFLAGS_ALL) $(INC_ENGINE) -MMD -MP -c $< -o $@

# fabric-sim alone among the tools sees the library's cores, which it runs under virtual time.
$(BUILD)/tools/fabric-sim/%.o: tools/fabric-sim/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  CC    $<"
	@$(CCACHE) $(CC) $(CFLAGS_ALL) $(INC_LIB) -Itools -MMD -MP -c $< -o $@

$(BUILD)/tools/%.o: tools/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  CC    $<"
	@$(CCACHE) $(CC) $(CFLAGS_ALL) $(INC_TOOLS) -MMD -MP -c $< -o $@

$(BUILD)/tests/%.o: tests/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  CC    $<"
	@$(CCACHE) $(CC) $(CFLAGS_ALL) $(INC_LIB) $(INC_ENGINE) -Itests/unit -MMD -MP -c $< -o $@

$(BUILD)/libfabricmgr.a: $(LIB_OBJ) $(BUILD)/sources
	@rm -f $@; ar rcs $@ $(filter %.o,$^)
$(BUILD)/libkernels.a: $(KERNEL_OBJ) $(BUILD)/sources
	@rm -f $@; ar rcs $@ $(filter %.o,$^)
$(BUILD)/libengine.a: $(ENGINE_OBJ) $(BUILD)/sources
	@rm -f $@; ar rcs $@ $(filter %.o,$^)

$(BUILD)/libsim.a: $(call obj,$(SIM_SRC)) $(BUILD)/sources
	@rm -f $@; ar rcs $@ $(filter %.o,$^)

$(BUILD)/libfabricmgr.so: $(LIB_OBJ) libfabricmgr/fabricmgr.map
	@echo "  LINK  $@"
	@$(CC) -shared $(LDFLAGS_ALL) -Wl,-soname,libfabricmgr.so.0 -Wl,--version-script=libfabricmgr/fabricmgr.map -o $@ $(LIB_OBJ) $(LDLIBS_LIB)

# What a tool alone links with.
LDLIBS_fabricctl := -lncurses -ltinfo
LDLIBS_fabricmgrd := -linih -lmicrohttpd

define tool_rule
$(BUILD)/bin/$(1): $(TSAN_OBJ) $(call obj,$(call src,tools/$(1)) tools/command_line.c) $(BUILD)/libfabricmgr.a
	@mkdir -p $$(@D)
	@echo "  LINK  $$@"
	@$$(CC) $$(LDFLAGS_ALL) $$(TSAN_LINK) -o $$@ $$^ $$(LDLIBS_$(1)) -ljansson $$(LDLIBS_LIB)
endef
$(foreach t,$(TOOLS),$(eval $(call tool_rule,$(t))))

$(BUILD)/bin/fabric-sim: $(BUILD)/tools/fabric-sim/main.o $(BUILD)/libsim.a $(BUILD)/libfabricmgr.a
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	@$(CC) $(LDFLAGS_ALL) -o $@ $^ -ljansson -llzma -lm $(LDLIBS_LIB)

$(BUILD)/bin/fabric-engine: $(TSAN_OBJ) $(BUILD)/engine/main.o $(BUILD)/libengine.a $(BUILD)/libkernels.a $(BUILD)/libfabricmgr.a
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	@$(CC) $(LDFLAGS_ALL) $(TSAN_LINK) -o $@ $^ $(LDLIBS_ENGINE)

# Planted faults, to see that the random mixes find them (tests/suites/plants.py): the one object that
# has the fault is linked before the archive with the sound one.
PLANTS := CHUNK_DEPENDENT_SUM STALE_BLOCK KEY_WITHOUT_PREFIX
plants: $(addprefix $(BUILD)/plants/,$(PLANTS))
define plant_rule
$(BUILD)/plants/$(1): $(2) $(BUILD)/tests/unit/test_mixes.o $(UNIT_HELP_OBJ) $(BUILD)/libengine.a $(BUILD)/libkernels.a $(BUILD)/libsim.a $(BUILD)/libfabricmgr.a
	@mkdir -p $$(@D)
	@echo "  LINK  $$@"
	@$$(CC) $$(CFLAGS_ALL) $$(INC_ENGINE) -DFM_PLANT_$(1) -c $(2) -o $$@.o
	@$$(CC) $$(LDFLAGS_ALL) -o $$@ $$@.o $$(filter-out %.c,$$^) -lcheck -lsubunit -lrt -llzma $$(LDLIBS_ENGINE)
endef
$(eval $(call plant_rule,CHUNK_DEPENDENT_SUM,kernels/cpu/portable.c))
$(eval $(call plant_rule,STALE_BLOCK,engine/worker/kv_cache.c))
$(eval $(call plant_rule,KEY_WITHOUT_PREFIX,engine/worker/kv_cache.c))

$(BUILD)/tests/bench/%: $(BUILD)/tests/bench/%.o $(BUILD)/libkernels.a $(BUILD)/libfabricmgr.a
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	@$(CC) $(LDFLAGS_ALL) -o $@ $^ -lm $(LDLIBS_LIB)

# A planted race, which suite tsan must find: VARIANT=tsan.
plant_race: $(BUILD)/plants/UNORDERED_DROP
$(BUILD)/plants/UNORDERED_DROP: libfabricmgr/pool/read.c $(TSAN_OBJ) $(BUILD)/tests/unit/test_pool_server.o $(UNIT_HELP_OBJ) $(BUILD)/libengine.a $(BUILD)/libkernels.a $(BUILD)/libsim.a $(BUILD)/libfabricmgr.a
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	@$(CC) $(CFLAGS_ALL) $(INC_LIB) -DFM_PLANT_UNORDERED_DROP -c $< -o $@.o
	@$(CC) $(LDFLAGS_ALL) $(TSAN_LINK) -o $@ $@.o $(filter-out %.c,$^) -lcheck -lsubunit -lrt -llzma $(LDLIBS_ENGINE)

$(BUILD)/tests/unit/%: $(TSAN_OBJ) $(BUILD)/tests/unit/test_%.o $(UNIT_HELP_OBJ) $(BUILD)/libengine.a $(BUILD)/libkernels.a $(BUILD)/libsim.a $(BUILD)/libfabricmgr.a
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	@$(CC) $(LDFLAGS_ALL) $(TSAN_LINK) -o $@ $^ -lcheck -lsubunit -lrt -llzma $(LDLIBS_ENGINE)

# Run by tests/process/test_isolation.py.
$(BUILD)/tests/hit_timing: $(TSAN_OBJ) $(BUILD)/tests/tools/hit_timing.o $(BUILD)/libfabricmgr.a
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	@$(CC) $(LDFLAGS_ALL) $(TSAN_LINK) -o $@ $^ $(LDLIBS_LIB)

# Preloaded by tests/process/fail_alloc.py. No builtins: the compiler must not see through malloc.
$(BUILD)/tests/fail_alloc.so: tests/tools/fail_alloc.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  LINK  $@"
	@$(CC) $(CFLAGS_ALL) -fno-builtin -fvisibility=default -Wno-missing-prototypes -shared -o $@ $<

clean:
	rm -rf build

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
