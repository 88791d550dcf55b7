# Copyright (c) 2026 The dendrite authors. MIT licence, see LICENSE.
#
# Everything that is built goes to build/, except dendrite.h, which is generated from src/ and committed.
# `make` alone lists the targets and the variables.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DELETE_ON_ERROR:
.SUFFIXES:
.DEFAULT_GOAL := help
MAKEFLAGS += --no-builtin-rules

# ---- variables for the command line -------------------------------------------------------------

ifeq ($(origin CC),default)
CC := gcc
endif
ifeq ($(origin CXX),default)
CXX := g++
endif
CFLAGS ?= -O2 -g
PYTHON ?= python3
SMOLLM2 := models/SmolLM2-135M-Instruct.Q4_1.gguf
QWEN05  := models/Qwen2.5-Coder-0.5B-Instruct.Q4_K_M.gguf
MODEL  ?= $(SMOLLM2)
OUT    ?=
N      ?=
PEERS  ?=
ONLY   ?=

# The checks that name both compilers use these.
GCC     ?= gcc
GXX     ?= $(CXX)
CLANG   ?= clang
CLANGXX ?= clang++

# The cross-compiler for AArch64, the emulator that runs what it makes, and Debian's folder of libraries for it.
ARM_GCC  ?= aarch64-linux-gnu-gcc
ARM_LIBS ?= /usr/lib/aarch64-linux-gnu
ARM_RUN  ?= qemu-aarch64 -L /usr/aarch64-linux-gnu -E LD_LIBRARY_PATH=$(ARM_LIBS) -cpu max

# The cross-compiler for Windows, and Wine, which runs what it makes (Debian: gcc-mingw-w64-x86-64, wine64).
WIN_GCC ?= x86_64-w64-mingw32-gcc-posix
WINE    ?= $(firstword $(shell command -v wine64 wine) /usr/lib/wine/wine64)

# A processor that has no vector extension beyond SSE (Debian: qemu-user).
PLAIN_RUN ?= qemu-x86_64 -cpu qemu64

# ---- flags --------------------------------------------------------------------------------------

STD      := -std=c99
WARN_CXX := -Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wundef -Wcast-qual -Wdouble-promotion \
            -Wvla -Werror
WARN     := $(WARN_CXX) -Wstrict-prototypes
INCLUDE  := -I.
LIBS     := -lm -lpthread

# ---- files --------------------------------------------------------------------------------------

ROOMS    := $(sort $(wildcard src/*/*.h src/*/*.c))
TESTS    := $(wildcard tests/*.c tests/*.h fuzz/*.c fuzz/*.h) examples/countdown.h
EXAMPLES := $(patsubst examples/%.c,%,$(wildcard examples/*.c))
BENCHES  := $(patsubst bench/%.c,%,$(wildcard bench/*.c))
FUZZERS  := $(patsubst fuzz/%.c,%,$(wildcard fuzz/*.c))

# bench/fork.c and bench/bench_fork.c both become build/bench_fork; fuzz/ likewise.
bench_binary = build/bench_$(patsubst bench_%,%,$(1))
fuzz_binary  = build/fuzz_$(patsubst fuzz_%,%,$(1))

build build/check build/goldens:
	@mkdir -p $@

# ---- help ---------------------------------------------------------------------------------------

.PHONY: help
help: ## this list
	@printf 'Targets\n'
	@sed -n 's/^\([a-z][a-z0-9-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 20
	@printf 'Variables\n'
	@printf '  CC=%s CXX=%s CFLAGS="%s" PYTHON=%s\n' '$(CC)' '$(CXX)' '$(CFLAGS)' '$(PYTHON)'
	@printf '  MODEL=%s  (run-fork, hello: the GGUF file)\n' '$(MODEL)'
	@printf '  OUT=file.json  (bench, bench-doors, bench-fork, bench-search, bench-search-real: where the result goes)\n'
	@printf '  N=number       (bench: rounds; bench-attention, bench-matmul: samples; bench-search: puzzles;\n                  bench-search-real: problems; fuzz-run: seconds a target)\n'
	@printf '  PEERS=folder   (bench: builds of other engines)   ONLY=models or rows (bench)\n'

# ---- the header ---------------------------------------------------------------------------------

# A fresh clone has files of one age in any order, and may meet a machine without Python: then the header that is
# committed is taken as it is.
dendrite.h: $(ROOMS) tools/amalgamate.py LICENSE
	@if command -v $(PYTHON) > /dev/null; then $(PYTHON) tools/amalgamate.py -o $@; \
	else echo 'no $(PYTHON): dendrite.h is taken as it is'; fi
	@touch $@

.PHONY: header dev
header: dendrite.h ## generate dendrite.h from src/

dev: | build ## generate build/dendrite_dev.c, which includes the rooms one by one (for editors and gdb)
	$(PYTHON) tools/amalgamate.py --dev build/dendrite_dev.c

# The comparison comes first and outside of make's dependencies, or else make would mend what is to be checked.
.PHONY: check-header
check-header: ## compare dendrite.h with src/, and compile it in every supported way
	$(PYTHON) tools/amalgamate.py --check
	@$(MAKE) --no-print-directory check-compile

# Each compilation is a file build/check/NAME.ok, so that `make -j` spreads them and a second run is short.
C_COMPILERS   := gcc clang
CXX_COMPILERS := gxx clangxx
tool_gcc      := $(GCC)
tool_clang    := $(CLANG)
tool_gxx      := $(GXX)
tool_clangxx  := $(CLANGXX)
SWITCHES      := $(shell sed -n 's,^/\* switch: \(DEND_NO_[A-Z0-9_]*\) .*,\1,p' $(wildcard src/00_front/*.h))

CHECKS := $(foreach c,$(C_COMPILERS),decl-c99-$(c) impl-c99-$(c) impl-c11-$(c) stdio-first-$(c) static-$(c) \
              two-units-$(c) core-$(c) $(foreach s,$(SWITCHES),without-$(s)-$(c))) \
          $(foreach c,$(CXX_COMPILERS),decl-cxx11-$(c) impl-cxx11-$(c) decl-cxx20-$(c) impl-cxx20-$(c)) no-vex-gcc

.PHONY: check-compile
check-compile: $(CHECKS:%=build/check/%.ok)
	@printf 'check-header: %d compilations passed\n' $(words $(CHECKS))

build/check/decl.c: | build/check
	@printf '#include <stdio.h>\n#include "dendrite.h"\nint main(void);\nint main(void) { return dend_version() == 0; }\n' > $@

build/check/stdio_first.c: | build/check
	@printf '#include <stdio.h>\n#include "dendrite.h"\n#define DENDRITE_IMPLEMENTATION\n#include "dendrite.h"\n' > $@

build/check/static.c: | build/check
	@printf '#define DEND_STATIC\n#define DENDRITE_IMPLEMENTATION\n#include "dendrite.h"\n' > $@
	@printf 'int main(void) { return dend_version() == 0; }\n' >> $@

# Names every public function, so that one that is declared but not defined does not link.
build/check/user.c: dendrite.h | build/check
	@printf '#include <stdio.h>\n#include "dendrite.h"\ntypedef void (*any_function)(void);\n' > $@
	@printf 'static const any_function all[] = {\n' >> $@
	@sed -n '/^#endif .* DENDRITE_H /q; s/^DEND_API [^(]*\b\(dend_[a-z0-9_]*\)(.*/    (any_function)\1,/p' dendrite.h >> $@
	@printf '};\nint main(void) {\n    printf("two units: %%u public functions linked\\n", (unsigned)(sizeof all / sizeof all[0]));\n' >> $@
	@printf '    return dend_version() == 0 || all[0] == 0;\n}\n' >> $@

CHECKED = dendrite.h dendrite.c Makefile
QUIET_OK = @touch $@

build/check/decl-c99-%.ok: build/check/decl.c $(CHECKED)
	$(tool_$*) -std=c99 -O1 $(WARN) $(INCLUDE) -c -o build/check/decl-c99-$*.o $<
	$(QUIET_OK)

build/check/decl-cxx11-%.ok: build/check/decl.c $(CHECKED)
	$(tool_$*) -x c++ -std=c++11 -O1 $(WARN_CXX) $(INCLUDE) -c -o build/check/decl-cxx11-$*.o $<
	$(QUIET_OK)

build/check/impl-c99-%.ok: $(CHECKED) | build/check
	$(tool_$*) -std=c99 -O2 $(WARN) -c -o build/check/impl-c99-$*.o dendrite.c
	$(QUIET_OK)

build/check/impl-c11-%.ok: $(CHECKED) | build/check
	$(tool_$*) -std=c11 -O1 $(WARN) -c -o build/check/impl-c11-$*.o dendrite.c
	$(QUIET_OK)

build/check/impl-cxx11-%.ok: $(CHECKED) | build/check
	$(tool_$*) -x c++ -std=c++11 -O1 $(WARN_CXX) -c -o build/check/impl-cxx11-$*.o dendrite.c
	$(QUIET_OK)

build/check/decl-cxx20-%.ok: build/check/decl.c $(CHECKED)
	$(tool_$*) -x c++ -std=c++20 -O1 $(WARN_CXX) $(INCLUDE) -c -o build/check/decl-cxx20-$*.o $<
	$(QUIET_OK)

build/check/impl-cxx20-%.ok: $(CHECKED) | build/check
	$(tool_$*) -x c++ -std=c++20 -O1 $(WARN_CXX) -c -o build/check/impl-cxx20-$*.o dendrite.c
	$(QUIET_OK)

build/check/stdio-first-%.ok: build/check/stdio_first.c $(CHECKED)
	$(tool_$*) -std=c99 -O1 $(WARN) $(INCLUDE) -c -o build/check/stdio-first-$*.o $<
	$(QUIET_OK)

# A static function that this file does not call is no mistake here.
build/check/static-%.ok: build/check/static.c $(CHECKED)
	$(tool_$*) -std=c99 -O1 $(WARN) -Wno-unused-function $(INCLUDE) -o build/check/static-$* $< $(LIBS)
	build/check/static-$*
	$(QUIET_OK)

build/check/two-units-%.ok: build/check/user.c build/check/impl-c99-%.ok $(CHECKED)
	$(tool_$*) -std=c99 -O1 $(WARN) $(INCLUDE) -o build/check/two-units-$* $< build/check/impl-c99-$*.o $(LIBS)
	build/check/two-units-$*
	$(QUIET_OK)

define without_rule
build/check/without-$(1)-%.ok: $$(CHECKED) | build/check
	$$(tool_$$*) -std=c99 -O1 $$(WARN) -D$(1) -c -o build/check/without-$(1)-$$*.o dendrite.c
	$$(QUIET_OK)
endef
$(foreach s,$(SWITCHES),$(eval $(call without_rule,$(s))))

# The core profile: every switch at once. The object's size and the time that it took are figures of bench-doors.
CORE := $(SWITCHES:%=-D%)
build/check/core-%.ok: $(CHECKED) | build/check
	$(tool_$*) -std=c99 -O2 $(WARN) $(CORE) -c -o build/check/core-$*.o dendrite.c
	$(QUIET_OK)

# In a plain build only functions that are compiled for AVX, and are called after the processor was asked, may hold an
# instruction of it (a name that begins with v) or of its mask registers.
ifeq ($(shell uname -m),x86_64)
build/check/no-vex-%.ok: build/check/impl-c99-%.ok $(CHECKED)
	objdump -d --no-show-raw-insn build/check/impl-c99-$*.o | awk ' \
	    /^[0-9a-f]+ <.*>:$$/ { f = $$2 } \
	    /^ *[0-9a-f]+:\t(v[a-z]|k[a-z]+[bwdq] )/ && $$2 !~ /^ver[rw]/ { \
	        n++; if (f !~ /_(avx2|avx512|vnni|vnni_avx2)[.>]|_(direct|rows)[1-4]|_unpack_|_widen_rows/) { print "AVX in " f, $$0; bad = 1 } } \
	    END { exit bad || n == 0 }'
	$(QUIET_OK)
else
build/check/no-vex-%.ok: | build/check
	$(QUIET_OK)
endif

# For AArch64: the plainest processor, where only the kernels may use dot products, and one where all code may.
build/check/arm64-%.ok: $(CHECKED) | build/check
	$(ARM_GCC) -std=c99 -O2 $(WARN) -march=$* -c -o build/check/arm64-$*.o dendrite.c
	$(QUIET_OK)

# ---- tests --------------------------------------------------------------------------------------

TEST_INPUTS  = tests/main.c $(TESTS) dendrite.h | build
TEST_COMPILE = $(STD) $(CFLAGS) $(WARN) $(INCLUDE) -Itests

build/test-gcc: $(TEST_INPUTS)
	$(GCC) $(TEST_COMPILE) -o $@ tests/main.c -lcmocka $(LIBS)

build/test-clang: $(TEST_INPUTS)
	$(CLANG) $(TEST_COMPILE) -o $@ tests/main.c -lcmocka $(LIBS)

# Warnings are for the ordinary builds: with the code that the sanitizers add, compilers warn where nothing is wrong.
SANITIZED = $(STD) -O1 -g -w -fno-omit-frame-pointer $(INCLUDE) -Itests

build/test-asan: $(TEST_INPUTS)
	$(CC) $(SANITIZED) -fsanitize=address,undefined -fno-sanitize-recover=all -o $@ tests/main.c -lcmocka $(LIBS)

build/test-tsan: $(TEST_INPUTS)
	$(CC) $(SANITIZED) -fsanitize=thread -o $@ tests/main.c -lcmocka $(LIBS)

# Runs the AVX-512 and AVX-VNNI kernels on processors without, by way of SIMDe (Debian: libsimde-dev). SIMDe's headers are
# not made for strict warnings and are slow to compile (five times as slow at -O2); they need AVX2 underneath.
build/test-simde: tests/test_avx512_simde.c $(TEST_INPUTS)
	$(GCC) -O1 -g -std=gnu11 -mavx2 -mfma -mf16c $(INCLUDE) -Itests -o $@ $< -lcmocka $(LIBS)

# Runs the NEON kernels on other processors. (Debian: gcc-aarch64-linux-gnu, libc6-dev-arm64-cross, qemu-user, and
# libcmocka-dev:arm64 after dpkg --add-architecture arm64. That package shares its header with the native one; the
# cross-compiler must be told where.) gnu99, because only there gcc makes one operation of a * b + c as it likes.
# Without vectorising, because gcc 12 fails with an internal error over a loop of the tests.
build/test-neon: tests/test_neon.c $(TEST_INPUTS)
	$(ARM_GCC) $(TEST_COMPILE) -std=gnu99 -Wno-unused-function -fno-tree-vectorize -idirafter /usr/include -o $@ $< \
	    $(ARM_LIBS)/libcmocka.so $(LIBS)

build/test-core: tests/test_core.c $(TEST_INPUTS)
	$(GCC) $(TEST_COMPILE) -Wno-unused-function $(CORE) -o $@ $< -lcmocka -lm

ARM_CHECKS := $(foreach m,armv8-a armv8.4-a,build/check/arm64-$(m).ok)

# All tests in builds whose flags let a compiler take liberties with floating point.
FAST_MATH = -w $(INCLUDE) -Itests
build/test-fast-gcc: $(TEST_INPUTS)
	$(GCC) -std=gnu99 -Ofast -march=native $(FAST_MATH) -o $@ tests/main.c -lcmocka $(LIBS)

build/test-fast-clang: $(TEST_INPUTS)
	$(CLANG) $(STD) -O3 -ffast-math -march=native $(FAST_MATH) -o $@ tests/main.c -lcmocka $(LIBS)

# Rooms and tests that ask nothing of POSIX, and an example, for Windows.
build/test-windows.exe: tests/test_windows.c tests/windows/cmocka.h $(TEST_INPUTS)
	$(WIN_GCC) $(STD) -O2 $(WARN) -Wno-unused-function $(INCLUDE) -Itests/windows -Itests -static -o $@ $< -lm

build/hello.exe: examples/hello.c dendrite.c dendrite.h | build
	$(WIN_GCC) $(STD) -O2 $(WARN) $(INCLUDE) -static -o $@ $< dendrite.c -lm

.PHONY: test test-long test-gcc test-clang test-simde test-neon test-windows test-plain test-fast-math test-fast-math-short test-core test-tools asan tsan
test: test-gcc test-clang test-core test-simde test-tools ## all tests: with gcc, with clang, of the core profile, and those of tools/

test-gcc: build/test-gcc ## tests/main.c built with gcc
	build/test-gcc

test-clang: build/test-clang ## tests/main.c built with clang
	build/test-clang

test-core: build/test-core ## what is left with every DEND_NO_x
	build/test-core

test-simde: ## the AVX-512 and AVX-VNNI kernels, emulated
	@if ! grep -q -s -w avx2 /proc/cpuinfo; then echo 'test-simde: skipped, this processor has no AVX2'; \
	elif ! echo '#include <simde/x86/avx512.h>' | $(GCC) -fsyntax-only -x c - 2> /dev/null; then \
	    echo 'test-simde: skipped, SIMDe is not installed'; [ "$${CI:-}" != true ]; \
	else $(MAKE) --no-print-directory build/test-simde && build/test-simde; fi

test-neon: ## the NEON kernels, cross-compiled and emulated
	@if [ "$$(uname -m)" = aarch64 ]; then echo 'test-neon: skipped, all tests run the NEON kernels here'; \
	elif ! command -v $(ARM_GCC) > /dev/null || ! command -v $(firstword $(ARM_RUN)) > /dev/null || \
	    ! [ -e $(ARM_LIBS)/libcmocka.so ]; then \
	    echo 'test-neon: skipped, no cross-compiler, emulator or cmocka for AArch64'; [ "$${CI:-}" != true ]; \
	else $(MAKE) --no-print-directory $(ARM_CHECKS) build/test-neon && $(ARM_RUN) build/test-neon; fi

test-windows: ## what is portable, cross-compiled for Windows and run under Wine
	@if ! command -v $(WIN_GCC) > /dev/null; then echo 'test-windows: skipped, no $(WIN_GCC)'; [ "$${CI:-}" != true ]; \
	else $(MAKE) --no-print-directory build/test-windows.exe build/hello.exe; \
	    if ! command -v $(WINE) > /dev/null; then echo 'test-windows: built and not run, Wine is not here'; [ "$${CI:-}" != true ]; \
	    else WINEPREFIX="$(CURDIR)/build/wine" WINEDEBUG=-all timeout 900 $(WINE) build/test-windows.exe; fi; fi

# The emulator executes no AVX instruction: one outside of the guarded kernels would end the program.
test-plain: build/test-gcc ## kernels, sampling and tiny models on an emulated processor without AVX
	@if [ "$$(uname -m)" != x86_64 ] || ! command -v $(firstword $(PLAIN_RUN)) > /dev/null; then \
	    echo 'test-plain: skipped, this is no x86-64 or has no $(firstword $(PLAIN_RUN))'; [ "$${CI:-}" != true ]; \
	else ( bad=0; for tests in 'test_kernels_*' 'test_vector_*' 'test_golden_tiny_*' 'test_table_*' 'test_tree_*'; do \
	    $(PLAIN_RUN) build/test-gcc "$$tests" || bad=1; done; exit $$bad ) | grep -v -F '[  PASSED  ] 0 '; fi

test-fast-math: build/test-fast-gcc build/test-fast-clang ## all tests under -Ofast, -ffast-math and -march=native
	build/test-fast-gcc
	build/test-fast-clang

# What depends on floating point most, for a check that must be short.
test-fast-math-short: build/test-fast-gcc
	@( bad=0; for tests in 'test_matmul_*' 'test_tiles_*' 'test_vector_*' 'test_sampling_*' 'test_engine_row_*' \
	    'test_golden_*' 'test_zoo_*'; do build/test-fast-gcc "$$tests" || bad=1; done; exit $$bad ) | \
	    grep -v -F '[  PASSED  ] 0 '

test-tools: build/chat ## the tests of the Python tools, and of examples/chat.c
	$(PYTHON) -m unittest discover -s tools
	$(PYTHON) tools/make_bad_gguf.py --check

# N is the seconds of each fuzz target here: ten minutes.
test-long: build/test-gcc test-fast-math test-plain test-windows test-neon ## hours: long fuzzing, loops of 1,000 rounds under sanitizers, every other build
	$(MAKE) --no-print-directory asan
	$(MAKE) --no-print-directory fuzz-run N=$(or $(N),600)

asan: build/test-asan ## the tests under the address and undefined-behaviour sanitizers
	UBSAN_OPTIONS=print_stacktrace=1 build/test-asan

tsan: build/test-tsan ## the tests under the thread sanitizer
	TSAN_OPTIONS=halt_on_error=1 build/test-tsan

# ---- fuzzing ------------------------------------------------------------------------------------

define fuzz_rule
$(call fuzz_binary,$(1)): fuzz/$(1).c $(wildcard fuzz/*.h) dendrite.h | build
	$$(CLANG) $$(STD) -O1 -g $$(WARN) $$(INCLUDE) -DFUZZ_MODEL_LOAD -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -o $$@ $$< $$(LIBS)
endef
$(foreach f,$(FUZZERS),$(eval $(call fuzz_rule,$(f))))

.PHONY: fuzz fuzz-run
fuzz: $(foreach f,$(FUZZERS),$(call fuzz_binary,$(f))) ## build the libFuzzer targets: build/fuzz_NAME (needs clang)

fuzz-run: fuzz ## run each fuzz target on its corpus for N seconds (10)
	@for target in $(foreach f,$(FUZZERS),$(call fuzz_binary,$(f))); do \
	    name=$${target#build/fuzz_}; mkdir -p build/corpus/$$name; \
	    seeds=; if [ -d fuzz/corpus/$$name ]; then seeds=fuzz/corpus/$$name; fi; \
	    if [ $$name = model ]; then seeds=fuzz/corpus/gguf; fi; \
	    echo "$$target"; \
	    $$target -max_total_time=$(or $(N),10) -rss_limit_mb=4096 -print_final_stats=0 -verbosity=0 \
	        -artifact_prefix=build/corpus/$$name- build/corpus/$$name $$seeds; \
	done

# ---- models, examples, benchmarks ---------------------------------------------------------------

$(SMOLLM2):
	$(PYTHON) tools/fetch_model.py smollm2

$(QWEN05):
	$(PYTHON) tools/fetch_model.py qwen05

.PHONY: model models
model: ## fetch the small test model (98 MB) into models/
	$(PYTHON) tools/fetch_model.py smollm2

models: ## fetch all test models (1.8 GiB) into models/
	$(PYTHON) tools/fetch_model.py --all

build/dendrite.o: dendrite.c dendrite.h | build
	$(CC) $(STD) $(CFLAGS) $(WARN) -c -o $@ $<

define example_rule
build/$(1): examples/$(1).c $(wildcard examples/*.h) build/dendrite.o dendrite.h | build
	$$(CC) $$(STD) $$(CFLAGS) $$(WARN) $$(INCLUDE) -o $$@ $$< build/dendrite.o $$(LIBS)
endef
$(foreach e,$(EXAMPLES),$(eval $(call example_rule,$(e))))

# Benchmarks include the implementation themselves: they measure single rooms too.
# A benchmark includes the implementation, so that it can measure private functions; it need not use all of them.
define bench_rule
$(call bench_binary,$(1)): bench/$(1).c $(wildcard bench/*.h examples/*.h) dendrite.h | build
	$$(CC) $$(STD) $$(CFLAGS) $$(WARN) -Wno-unused-function $$(INCLUDE) -o $$@ $$< $$(LIBS)
endef
$(foreach b,$(BENCHES),$(eval $(call bench_rule,$(b))))

.PHONY: examples benches run run-fork hello bench bench-attention bench-doors bench-fork bench-matmul bench-search bench-search-real train
examples: $(EXAMPLES:%=build/%) ## build every file of examples/

benches: $(foreach b,$(BENCHES),$(call bench_binary,$(b))) ## build every file of bench/

run: build/solve24 ## solve number puzzles by sampling and by search, with the model in examples/models
	build/solve24

run-fork: build/fork $(MODEL) ## fork one prompt into several continuations (fetches the small model if need be)
	build/fork -m "$(MODEL)"

hello: build/hello $(MODEL) ## the shortest whole program
	build/hello "$(MODEL)"

# The core profile's size and the processor time of its compilation are measured here and handed on.
bench-doors: build/bench_doors $(SMOLLM2) $(QWEN05) ## time slices, the plan, tokenizing, loading, the core profile; OUT applies
	@seconds=$$( { TIMEFORMAT=%U; time $(CC) $(STD) -O2 $(CORE) -c -o build/core.o dendrite.c; } 2>&1 ); \
	text=$$(size build/core.o | awk 'NR == 2 { print $$1 }'); \
	echo "core profile: $$text bytes of text, compiled in $$seconds s"; \
	build/bench_doors -t "$$text" -s "$$seconds" $(if $(OUT),-o "$(OUT)")

bench-fork: build/bench_fork ## time and memory of forks, appends, rewinds and drops; OUT applies
	build/bench_fork $(if $(OUT),"$(OUT)")

bench-matmul: build/bench_matmul ## each matmul kernel beside what the machine can do; N applies
	build/bench_matmul $(N)

bench-attention: build/bench_attention ## attention in cycles for 16 keys and a query head; N (samples) applies
	build/bench_attention $(N)

bench-search: build/bench_search $(SMOLLM2) ## search beside sampling, and what search costs; N (puzzles), OUT apply
	build/bench_search $(if $(N),-n $(N)) $(if $(OUT),-o "$(OUT)")

bench-search-real: build/bench_search_real $(QWEN05) ## search on a real model and sums in words: 10 minutes; N (problems), OUT apply
	build/bench_search_real $(if $(N),-n $(N)) $(if $(OUT),-o "$(OUT)")

bench: build/bench_engine build/bench_attention ## the whole table beside other engines' builds in PEERS; N (rounds), ONLY, OUT apply
	$(PYTHON) tools/bench.py $(if $(PEERS),--peers "$(PEERS)") $(if $(N),--rounds $(N)) $(if $(ONLY),--only "$(ONLY)") \
	    $(if $(OUT),--out "$(OUT)")

# ---- the model in examples/models -----------------------------------------------------------------

TRAIN_PYTHON := build/train/venv/bin/python

build/train/venv.ok: tools/train/requirements.txt | build
	@mkdir -p build/train
	$(PYTHON) -m venv build/train/venv
	$(TRAIN_PYTHON) -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# An hour and a half on two cores. The file that is committed was made so.
train: build/train/venv.ok ## make examples/models/countdown.gguf anew (packages: tools/train/requirements.txt)
	$(TRAIN_PYTHON) tools/train/countdown.py examples/models
	$(TRAIN_PYTHON) tools/train/train.py --out examples/models/countdown.gguf

# ---- goldens ------------------------------------------------------------------------------------

GOLDEN_PYTHON := build/goldens/venv/bin/python

build/goldens/venv.ok: tools/goldens/requirements.txt | build/goldens
	$(PYTHON) -m venv build/goldens/venv
	$(GOLDEN_PYTHON) -m pip install --quiet --disable-pip-version-check -r $<
	@touch $@

# Each script says at its top what it writes. They need both smaller models, and minutes: one of the packages is
# compiled from source.
.PHONY: goldens
goldens: build/goldens/venv.ok ## make tests/golden anew with tools/goldens (packages: tools/goldens/requirements.txt)
	$(PYTHON) tools/fetch_model.py smollm2 qwen05
	$(GOLDEN_PYTHON) tools/make_unicode_tables.py --check
	$(GOLDEN_PYTHON) tools/goldens/quant_blocks.py
	$(GOLDEN_PYTHON) tools/goldens/quant_encode.py
	$(GOLDEN_PYTHON) tools/goldens/tiny_models.py
	$(GOLDEN_PYTHON) tools/goldens/tokenizer.py $(SMOLLM2) $(QWEN05)
	$(GOLDEN_PYTHON) tools/goldens/samplers.py
	$(GOLDEN_PYTHON) tools/goldens/pieces.py models/gemma-3-270m-Q4_K_M.gguf
	$(GOLDEN_PYTHON) tools/goldens/tokenizer_json.py
	$(GOLDEN_PYTHON) tools/goldens/chat.py $(SMOLLM2) $(QWEN05)
	$(GOLDEN_PYTHON) tools/goldens/model_goldens.py $(SMOLLM2) tests/golden/model_smollm2.bin
	$(GOLDEN_PYTHON) tools/goldens/model_goldens.py $(QWEN05) tests/golden/model_qwen05.bin

# ---- housekeeping -------------------------------------------------------------------------------

OURS = $(ROOMS) $(TESTS) $(wildcard examples/*.c bench/*.c bench/*.h) dendrite.c

.PHONY: format lint clean
format: ## clang-format for all C files of ours
	clang-format -i $(OURS)

lint: dendrite.h ## cppcheck, and clang-tidy where it is installed
	cppcheck --quiet --std=c99 --enable=warning,performance,portability --inline-suppr --error-exitcode=1 dendrite.c
	@if command -v clang-tidy > /dev/null; then \
	    clang-tidy --quiet --checks='-*,clang-analyzer-*,-clang-analyzer-security.insecureAPI.*' dendrite.c -- $(STD); \
	else echo 'lint: clang-tidy is not installed, left out'; fi

clean: ## remove build/
	rm -rf build
