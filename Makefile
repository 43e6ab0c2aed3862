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
CC := gcc
endif
CCACHE := $(shell command -v ccache 2>/dev/null)
PKGS := liburing libmicrohttpd jansson libpcre2-8 libutf8proc libisal numa libcrypto
HAVE_PKGS := $(shell pkg-config --exists $(PKGS) 2>/dev/null && echo yes)

WARN := -Wall -Wextra -Werror -Wmissing-prototypes -Wstrict-prototypes -Wpointer-arith -Wvla
OPT_release := -O2 -g
OPT_asan := -O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer
OPT_tsan := -O1 -g -fsanitize=thread -fno-omit-frame-pointer
OPT := $(OPT_$(VARIANT))
ifeq ($(OPT),)
$(error VARIANT=$(VARIANT) is not known: use release, asan or tsan)
endif
# -ffp-contract=off: a multiply and an add fuse only where the source says fmaf (the arithmetic contract).
CFLAGS_ALL := -std=gnu11 $(OPT) $(WARN) -fPIC -fvisibility=hidden -ffp-contract=off -fno-math-errno \
	-D_GNU_SOURCE -DFM_VERSION='"$(VERSION)"' $(CFLAGS)
INC_LIB := -Ilibfabricmgr/include -Ikmod/uapi -Ilibfabricmgr
INC_ENGINE := -Ilibfabricmgr/include -Ikmod/uapi -Ikernels -Iengine
INC_TOOLS := -Ilibfabricmgr/include -Ikmod/uapi
LDLIBS_LIB := -luring -lcrypto -lisal -lnuma -lpthread
LDLIBS_ENGINE := -lmicrohttpd -ljansson -lpcre2-8 -lutf8proc -lm $(LDLIBS_LIB)
LDFLAGS_ALL := $(OPT) -Wl,--as-needed -Wl,-z,relro,-z,now $(LDFLAGS)

src = $(sort $(foreach d,$(1),$(wildcard $(d)/*.c)))
LIB_SRC := $(call src,libfabricmgr/base libfabricmgr/core libfabricmgr/mem libfabricmgr/pool)
KERNEL_SRC := $(call src,kernels/cpu)
ENGINE_SRC := $(filter-out engine/main.c,$(call src,engine engine/model engine/text engine/core engine/http engine/worker))
UNIT_SRC := $(call src,tests/unit)
TOOLS := fabricmgrd fabricctl
obj = $(patsubst %.c,$(BUILD)/%.o,$(1))

LIB_OBJ := $(call obj,$(LIB_SRC))
KERNEL_OBJ := $(call obj,$(KERNEL_SRC))
ENGINE_OBJ := $(call obj,$(ENGINE_SRC))
UNIT_BIN := $(patsubst tests/unit/test_%.c,$(BUILD)/tests/unit/%,$(filter tests/unit/test_%.c,$(UNIT_SRC)))
UNIT_HELP_OBJ := $(call obj,$(filter-out tests/unit/test_%.c,$(UNIT_SRC)))
BIN := $(addprefix $(BUILD)/bin/,$(TOOLS) fabric-engine)

.DEFAULT_GOAL := all
.PHONY: all help deps model demo check check-unit check-process clean install programs units FORCE
.DELETE_ON_ERROR:

all: .deps-checked programs

programs: $(BUILD)/libfabricmgr.so $(BIN)
units: $(UNIT_BIN)


$(BUILD)/flags: FORCE
	@mkdir -p $(@D); printf '%s\n' '$(CC) $(subst ','\'',$(CFLAGS_ALL) $(LDFLAGS_ALL))' | cmp -s - $@ || \
		printf '%s\n' '$(CC) $(subst ','\'',$(CFLAGS_ALL) $(LDFLAGS_ALL))' > $@

$(BUILD)/libfabricmgr/%.o: libfabricmgr/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CCACHE) $(CC) $(CFLAGS_ALL) $(INC_LIB) -MMD -MP -c $< -o $@

# Each instruction-set path is a file of its own; only the dispatcher may call into it.
ISA_avx2 := -mavx2 -mfma -mf16c
ISA_avx512 := -mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mavx512vbmi -mfma -mf16c -mprefer-vector-width=512
$(BUILD)/kernels/%.o: kernels/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CCACHE) $(CC) $(CFLAGS_ALL) -O3 $(INC_ENGINE) $(if $(findstring avx512,$<),$(ISA_avx512),$(if $(findstring avx2,$<),$(ISA_avx2))) -MMD -MP -c $< -o $@

$(BUILD)/engine/%.o: engine/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CCACHE) $(CC) $(CFLAGS_ALL) $(INC_ENGINE) -MMD -MP -c $< -o $@

$(BUILD)/tools/%.o: tools/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CCACHE) $(CC) $(CFLAGS_ALL) $(INC_TOOLS) -MMD -MP -c $< -o $@

$(BUILD)/tests/%.o: tests/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	$(CCACHE) $(CC) $(CFLAGS_ALL) $(INC_LIB) $(INC_ENGINE) -Itests/unit -MMD -MP -c $< -o $@

$(BUILD)/libfabricmgr.a: $(LIB_OBJ)
	@rm -f $@; ar rcs $@ $^
$(BUILD)/libkernels.a: $(KERNEL_OBJ)
	@rm -f $@; ar rcs $@ $^
$(BUILD)/libengine.a: $(ENGINE_OBJ)
	@rm -f $@; ar rcs $@ $^

$(BUILD)/libfabricmgr.so: $(LIB_OBJ) libfabricmgr/fabricmgr.map
	$(CC) -shared $(LDFLAGS_ALL) -Wl,-soname,libfabricmgr.so.0 -Wl,--version-script=libfabricmgr/fabricmgr.map -o $@ $(LIB_OBJ) $(LDLIBS_LIB)

define tool_rule
$(BUILD)/bin/$(1): $(call obj,$(call src,tools/$(1))) $(BUILD)/libfabricmgr.a
	@mkdir -p $$(@D)
	$$(CC) $$(LDFLAGS_ALL) -o $$@ $$^ -ljansson $$(LDLIBS_LIB)
endef
$(foreach t,$(TOOLS),$(eval $(call tool_rule,$(t))))

$(BUILD)/bin/fabric-engine: $(BUILD)/engine/main.o $(BUILD)/libengine.a $(BUILD)/libkernels.a $(BUILD)/libfabricmgr.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS_ALL) -o $@ $^ $(LDLIBS_ENGINE)

$(BUILD)/tests/unit/%: $(BUILD)/tests/unit/test_%.o $(UNIT_HELP_OBJ) $(BUILD)/libengine.a $(BUILD)/libkernels.a $(BUILD)/libfabricmgr.a
	@mkdir -p $(@D)
	$(CC) $(LDFLAGS_ALL) -o $@ $^ -lcheck -lsubunit -lrt $(LDLIBS_ENGINE)

clean:
	rm -rf build

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
