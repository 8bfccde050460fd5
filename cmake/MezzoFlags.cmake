# Build types, warnings and sanitizers, in one place.
#   mezzo_flags(target)       how a target of ours is compiled
#   mezzo_link_flags(target)  what an executable or shared library needs at its link

if(NOT CMAKE_BUILD_TYPE)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release or Debug" FORCE)
endif()
set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS ON)
set(CMAKE_C_FLAGS_RELEASE "-O2 -g")
set(CMAKE_C_FLAGS_DEBUG "-Og -g")
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

if(NOT CMAKE_C_COMPILER_LAUNCHER)
    find_program(CCACHE ccache)
    if(CCACHE)
        set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
    endif()
endif()

set(mezzo_sanitizers "")
if(MEZZO_FUZZ)
    if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "MEZZO_FUZZ needs clang: configure with -DCMAKE_C_COMPILER=clang")
    endif()
    set(mezzo_sanitizers -fsanitize=fuzzer-no-link,address,undefined)
elseif(MEZZO_SANITIZE STREQUAL "thread")
    set(mezzo_sanitizers -fsanitize=thread)
elseif(MEZZO_SANITIZE)
    set(mezzo_sanitizers -fsanitize=address,undefined)
endif()
# Tests of a sanitized build find the library's own symbols in a shared library (mezzo_whole).
set(CMAKE_C_VISIBILITY_PRESET hidden)
if(mezzo_sanitizers)
    set(CMAKE_C_VISIBILITY_PRESET default)
    # -O1: a sanitized build is compiled on every change and run once; the compiler's time counts for more.
    list(APPEND mezzo_sanitizers -fno-sanitize-recover=all -fno-omit-frame-pointer -O1)
    if(CMAKE_C_COMPILER_ID MATCHES "Clang")
        list(APPEND mezzo_sanitizers -gline-tables-only) # reports name functions and lines; whole debug information costs time
    endif()
endif()

# What compiler and linker do against a memory error of ours: off under the sanitizers, which find such an error.
if(mezzo_sanitizers)
    set(harden_initial OFF)
else()
    set(harden_initial ON)
endif()
option(MEZZO_HARDEN "Stack protector, checked libc calls, control-flow protection, relocations read-only" ${harden_initial})
set(mezzo_harden "")
set(mezzo_harden_link "")
if(MEZZO_HARDEN)
    include(CheckCCompilerFlag)
    include(CheckPIESupported)
    check_pie_supported(LANGUAGES C)
    set(CMAKE_REQUIRED_FLAGS -Werror) # clang only warns of a flag that does nothing for this processor
    foreach(flag -fstack-protector-strong -fstack-clash-protection -fcf-protection=full -mbranch-protection=standard)
        string(MAKE_C_IDENTIFIER "mezzo_has${flag}" known)
        check_c_compiler_flag(${flag} ${known})
        if(${known})
            list(APPEND mezzo_harden ${flag})
        endif()
    endforeach()
    unset(CMAKE_REQUIRED_FLAGS)
    # It checks only where the compiler optimizes, and warns elsewhere.
    list(APPEND mezzo_harden $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE> $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=2>)
    set(mezzo_harden_link -Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
endif()

# Debug information names files from the source folder on, so that any two folders give the same bytes (scripts/reproducible.sh).
# A Debug build keeps whole paths, for debuggers on the machine that built it. ccache may name the source folder as the build
# folder sees it (CCACHE_BASEDIR).
file(RELATIVE_PATH mezzo_seen ${CMAKE_BINARY_DIR} ${CMAKE_SOURCE_DIR})
string(REGEX REPLACE "/$" "" mezzo_seen "${mezzo_seen}")
if(mezzo_seen STREQUAL "") # a build in the source folder
    set(mezzo_seen .)
endif()
set(mezzo_debug_paths "")
if(NOT CMAKE_BUILD_TYPE STREQUAL "Debug")
    set(mezzo_debug_paths -fdebug-prefix-map=${CMAKE_SOURCE_DIR}/= -fdebug-prefix-map=${mezzo_seen}/= -fdebug-prefix-map=${CMAKE_BINARY_DIR}=.)
endif()

function(mezzo_flags target)
    target_compile_options(${target} PRIVATE
        -Wall -Wextra -Wconversion -Wshadow -Wstrict-prototypes $<$<BOOL:${MEZZO_WERROR}>:-Werror>
        # Clang warns of `2.0 * N` with `enum { N = 3 }`, which is how C names an integer constant.
        $<$<C_COMPILER_ID:Clang>:-Wno-enum-float-conversion>
        # A loop that asks to be vectorized need not be: sanitized ones and, by clang 14, two others are not.
        $<$<C_COMPILER_ID:Clang,AppleClang>:-Wno-pass-failed>
        # __FILE__ is part of an error's trace: relative to the source folder, the same on every machine.
        -fmacro-prefix-map=${CMAKE_SOURCE_DIR}/= -fmacro-prefix-map=${mezzo_seen}/= -fmacro-prefix-map=${CMAKE_BINARY_DIR}/=
        ${mezzo_debug_paths}
        ${mezzo_sanitizers} $<$<COMPILE_LANGUAGE:C>:${mezzo_harden}>)
    if(APPLE)
        target_compile_options(${target} PRIVATE -include ${CMAKE_SOURCE_DIR}/src/base/macos.h)
    endif()
    target_compile_definitions(${target} PRIVATE MEZZO_VERSION="${PROJECT_VERSION}")
endfunction()

function(mezzo_link_flags target)
    # Device code is C++ for nvcc's sake and uses no C++ library.
    set_target_properties(${target} PROPERTIES LINKER_LANGUAGE C)
    target_link_options(${target} PRIVATE ${mezzo_harden_link})
    if(mezzo_sanitizers)
        target_link_options(${target} PRIVATE ${mezzo_sanitizers})
    endif()
endfunction()
