# SPDX-License-Identifier: Apache-2.0
# Builds the fuzz targets with their own compiler and sanitizers, apart from the other programs. fuzz.sh uses
# it. By hand:
#   make -f tests/fuzz/fuzz.mk SRCDIR=. FUZZ_CC=clang ENGINE=libfuzzer OUT=/tmp/fuzz all
# ENGINE: libfuzzer (clang's), or standalone (any compiler).
SRCDIR ?= .
OUT ?= fuzz-build
FUZZ_CC ?= clang
ENGINE ?= libfuzzer
SANITIZE ?= -fsanitize=address,undefined -fno-sanitize-recover=undefined

ifeq ($(ENGINE),libfuzzer)
INSTRUMENT = -fsanitize=fuzzer-no-link
LINK = -fsanitize=fuzzer
DRIVER =
else
INSTRUMENT =
LINK =
DRIVER = $(OUT)/standalone.o
endif

TARGETS = quant ulp wire tcp_wire abi abi_threads
FLAGS = -std=gnu11 -O1 -g1 -fno-omit-frame-pointer -ffp-contract=off -D_GNU_SOURCE \
	-I$(SRCDIR) -I$(SRCDIR)/include -I$(SRCDIR)/plugin -I$(SRCDIR)/tests -I$(SRCDIR)/tests/fuzz -I$(SRCDIR)/tests/codec -Wall -Wextra -MMD -MP $(SANITIZE)
CODEC = $(patsubst $(SRCDIR)/plugin/codec/%.c,$(OUT)/codec_%.o,$(wildcard $(SRCDIR)/plugin/codec/*.c))
REFERENCE = $(OUT)/reference_decode.o $(OUT)/reference_quant.o $(OUT)/reference_ulp.o
PARSERS = $(OUT)/wire.o $(OUT)/tcp_wire.o
# The whole plugin without three parts: verbs, which needs headers that may be missing, the codecs, and old
# names of the C library, by which calls get past the sanitizers.
PLUGIN = $(patsubst $(SRCDIR)/plugin/%.c,$(OUT)/plugin/%.o,$(filter-out $(SRCDIR)/plugin/net/verbs% $(SRCDIR)/plugin/base/old_glibc%.c,\
	$(sort $(shell find $(addprefix $(SRCDIR)/plugin/,abi base coll device net policy state) -name '*.c'))))
PLUGIN += $(OUT)/kernels_plan.o $(OUT)/kernels_image.o
NODES = $(OUT)/abi_calls.o $(OUT)/cluster.o $(OUT)/loopback.o $(OUT)/plugin/emulate/memory_net.o

all: $(TARGETS:%=$(OUT)/fuzz_%) $(OUT)/seeds

# Vector kernels take minutes to compile with a check at each of their pointers, and the address sanitizer
# watches their accesses already. The parsers around them have all checks.
$(OUT)/codec_quant_avx%.o: FLAGS += -fno-sanitize=null,object-size,pointer-overflow
# The address sanitizer's checks are calls: with all of them inline, clang takes longer for these two files
# than for all other files together.
ifeq ($(ENGINE),libfuzzer)
$(OUT)/codec_quant_avx%.o: FLAGS += -mllvm -asan-instrumentation-with-call-threshold=0
endif
$(OUT)/codec_%.o: $(SRCDIR)/plugin/codec/%.c
	@mkdir -p $(OUT)
	$(FUZZ_CC) $(FLAGS) $(INSTRUMENT) -c -o $@ $<
$(OUT)/reference_%.o: $(SRCDIR)/tests/codec/reference_%.c
	@mkdir -p $(OUT)
	$(FUZZ_CC) $(FLAGS) $(INSTRUMENT) -c -o $@ $<
$(OUT)/wire.o: $(SRCDIR)/plugin/coll/comm/wire.c
	@mkdir -p $(OUT)
	$(FUZZ_CC) $(FLAGS) $(INSTRUMENT) -c -o $@ $<
$(OUT)/tcp_wire.o: $(SRCDIR)/plugin/net/tcp/wire.c
	@mkdir -p $(OUT)
	$(FUZZ_CC) $(FLAGS) $(INSTRUMENT) -c -o $@ $<
$(OUT)/plugin/%.o: $(SRCDIR)/plugin/%.c
	@mkdir -p $(dir $@)
	@touch $(OUT)/config.h
	$(FUZZ_CC) $(FLAGS) -I$(OUT) -DPACKAGE_VERSION='"fuzz"' $(INSTRUMENT) -c -o $@ $<
$(OUT)/plugin/base/version.o: $(OUT)/nb-commit.h
$(OUT)/nb-commit.h:
	@mkdir -p $(OUT)
	echo '#define NB_COMMIT "fuzz"' >$@
$(OUT)/kernels_%.o: $(SRCDIR)/kernels/%.c
	@mkdir -p $(OUT)
	$(FUZZ_CC) $(FLAGS) -c -o $@ $<
$(OUT)/cluster.o: $(SRCDIR)/tests/coll/cluster.c
	@mkdir -p $(OUT)
	$(FUZZ_CC) $(FLAGS) -c -o $@ $<
$(OUT)/loop%.o: $(SRCDIR)/tests/net/loop%.c
	@mkdir -p $(OUT)
	$(FUZZ_CC) $(FLAGS) -c -o $@ $<
$(OUT)/%.o: $(SRCDIR)/tests/fuzz/%.c
	@mkdir -p $(OUT)
	$(FUZZ_CC) $(FLAGS) $(INSTRUMENT) -c -o $@ $<

$(OUT)/fuzz_abi: $(OUT)/fuzz_abi.o
$(OUT)/fuzz_abi_threads: $(OUT)/fuzz_abi_threads.o
$(OUT)/fuzz_abi $(OUT)/fuzz_abi_threads: $(PLUGIN) $(NODES) $(CODEC) $(DRIVER)
	$(FUZZ_CC) $(FLAGS) $(LINK) -o $@ $^ -lm -ldl -lpthread
	@if [ -n "$(SANITIZE)" ] && nm -u $@ | grep 'pthread_create@'; then \
		rm -f $@; echo "the C library's threads, which the sanitizers do not see"; exit 1; fi
# fuzz_wire and fuzz_tcp_wire contain the parsers that they test.
$(OUT)/fuzz_%: $(OUT)/fuzz_%.o $(CODEC) $(REFERENCE) $(DRIVER)
	$(FUZZ_CC) $(FLAGS) $(LINK) -o $@ $^ -lm
$(OUT)/seeds: $(OUT)/seeds.o $(CODEC) $(PARSERS)
	$(FUZZ_CC) $(FLAGS) -o $@ $^ -lm

# Naming them keeps make from taking objects for intermediate files.
.PHONY: all objects
objects: $(CODEC) $(REFERENCE) $(PARSERS) $(PLUGIN) $(NODES) $(TARGETS:%=$(OUT)/fuzz_%.o) $(OUT)/seeds.o $(OUT)/standalone.o
-include $(wildcard $(OUT)/*.d) $(wildcard $(OUT)/plugin/*/*.d) $(wildcard $(OUT)/plugin/*/*/*.d)
