# The two commands: `make demo` and `make test`. CMake does the building.
PREFIX ?= /usr/local
JOBS ?= $(shell nproc)
DATA ?= build/demo/text.txt
# A compiler newer than those we test with may warn of something new; that must not stop a user. CI sets this to ON.
WERROR ?= OFF
# The cuda backend. AUTO: where there are a GPU and nvcc, for that GPU. ON: for every GPU (minutes), or those of CUDA_ARCH, e.g. '80;90a'.
CUDA ?= AUTO
CUDA_ARCH ?=
export CTEST_OUTPUT_ON_FAILURE = 1

.PHONY: help setup setup-test build test demo demo-radio install uninstall format clean

help:
	@echo "make demo [DATA=FILE]     set up, build, train a small GPT and print a sample"
	@echo "make demo-radio           the same for radio maps: made-up cities, a small U-Net, pictures"
	@echo "make test                 set up, build, run every test"
	@echo "make build                build/release/mezzo and the libraries"
	@echo "make install [PREFIX=DIR] headers, libraries, mezzo.pc and the command (PREFIX is $(PREFIX))"
	@echo "make uninstall            remove the files of the last make install"
	@echo "make setup                install the missing distribution packages"
	@echo "make format               clang-format all sources"
	@echo "make clean                remove build/ (runs/ stays)"

setup:
	@scripts/setup.sh build

setup-test:
	@scripts/setup.sh build test
	@scripts/setup-python.sh

build: setup
	@cmake -S . -B build/release -G Ninja -DCMAKE_BUILD_TYPE=Release -DMEZZO_WERROR=$(WERROR) -DMEZZO_TESTS=OFF \
	    -DMEZZO_CUDA=$(CUDA) "-DMEZZO_CUDA_ARCH=$(CUDA_ARCH)"
	@cmake --build build/release -j $(JOBS)

# The build of `make build` and the tests beside it. Its command has `mezzo train --inject` until the next `make build`.
test: setup-test
	@cmake -S . -B build/release -G Ninja -DCMAKE_BUILD_TYPE=Release -DMEZZO_WERROR=$(WERROR) -DMEZZO_TESTS=ON \
	    -DMEZZO_CUDA=$(CUDA) "-DMEZZO_CUDA_ARCH=$(CUDA_ARCH)"
	@cmake --build build/release -j $(JOBS)
	@ctest --test-dir build/release -j $(JOBS)

demo:
	@scripts/demo.sh $(DATA)

demo-radio:
	@scripts/demo-radio.sh

install: build
	@cmake --install build/release --prefix $(PREFIX)

# The list is CMake's; of the folders, those that are ours alone and empty now.
uninstall:
	@test -f build/release/install_manifest.txt || { echo "nothing was installed from build/release" >&2; exit 1; }
	@while read -r file || [ -n "$$file" ]; do \
	    rm -f -- "$$file"; \
	    case "$$file" in */mezzo/*) rmdir -p -- "$$(dirname -- "$$file")" 2>/dev/null || true ;; esac; \
	done <build/release/install_manifest.txt
	@rm build/release/install_manifest.txt

format:
	@scripts/format.sh

clean:
	rm -rf build
