# The cuda backend: -DMEZZO_CUDA=ON|OFF|AUTO. AUTO takes it where there are a GPU and nvcc 12.8 or later, and compiles for that GPU alone.
# cudart is linked statically and opens the driver when it is first called; NVML, cuBLASLt and cuDNN are opened by the backend. So a
# build with CUDA starts on a machine without any of them.
# Results: mezzo_has_cuda, cuda_objects, cuda_link (what a library or program needs at its link).

set(MEZZO_CUDA AUTO CACHE STRING "Build the cuda backend: ON, OFF, or AUTO (where a GPU and nvcc are found)")
set(MEZZO_CUDA_ARCH "" CACHE STRING
    "GPU architectures to compile for: compute capabilities without the dot; ptx adds portable code for newer ones; empty: AUTO's GPU, or 75;80;90a;ptx")
set_property(CACHE MEZZO_CUDA PROPERTY STRINGS ON OFF AUTO)

set(mezzo_has_cuda OFF)
set(cuda_objects "")
set(cuda_link "")
if(MEZZO_CUDA STREQUAL "OFF")
    return()
endif()
if(MEZZO_CUDA STREQUAL "AUTO" AND NOT EXISTS /dev/nvidiactl AND NOT EXISTS /dev/dxg)
    message(STATUS "no NVIDIA GPU: no cuda backend (-DMEZZO_CUDA=ON builds it all the same)")
    return()
endif()

find_package(CUDAToolkit 12.8 QUIET)
if(NOT CUDAToolkit_FOUND OR NOT CUDAToolkit_NVCC_EXECUTABLE)
    if(MEZZO_CUDA STREQUAL "ON")
        message(FATAL_ERROR "MEZZO_CUDA=ON needs the CUDA toolkit 12.8 or later: install it, or put its nvcc on the PATH")
    endif()
    message(STATUS "CUDA 12.8 or later: not found; no cuda backend")
    return()
endif()
set(mezzo_has_cuda ON)
set(cuda_archs ${MEZZO_CUDA_ARCH})
if(NOT cuda_archs AND MEZZO_CUDA STREQUAL "AUTO")
    execute_process(COMMAND ${CMAKE_SOURCE_DIR}/scripts/gpu-arch.sh OUTPUT_VARIABLE cuda_archs OUTPUT_STRIP_TRAILING_WHITESPACE)
endif()
if(NOT cuda_archs)
    set(cuda_archs 75 80 90a ptx)
endif()
message(STATUS "CUDA ${CUDAToolkit_VERSION}: cuda backend for ${cuda_archs}")

set(CMAKE_CUDA_COMPILER ${CUDAToolkit_NVCC_EXECUTABLE})
set(CMAKE_CUDA_ARCHITECTURES OFF) # by -gencode below
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
if(NOT CMAKE_CUDA_COMPILER_LAUNCHER AND CMAKE_C_COMPILER_LAUNCHER)
    set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_C_COMPILER_LAUNCHER})
endif()
enable_language(CUDA)
set(CMAKE_CUDA_FLAGS_RELEASE "-O3")
set(CMAKE_CUDA_FLAGS_DEBUG "-O3") # device code without optimisation is of no use to anybody

set(architectures "")
foreach(arch ${cuda_archs})
    if(arch STREQUAL "ptx")
        # Of the newest plain architecture: code for an 'a' architecture runs on that one alone.
        list(APPEND architectures "SHELL:-gencode arch=compute_90,code=compute_90")
    else()
        list(APPEND architectures "SHELL:-gencode arch=compute_${arch},code=sm_${arch}")
    endif()
endforeach()

# Device code and its launchers.
file(GLOB cuda_kernel_sources CONFIGURE_DEPENDS src/backend/cuda/kernels/*.cu)
if(cuda_kernel_sources)
    add_library(mezzo_cuda_kernels OBJECT ${cuda_kernel_sources})
    target_compile_options(mezzo_cuda_kernels PRIVATE ${architectures} -std=c++20 --extended-lambda -lineinfo
        $<$<BOOL:${MEZZO_WERROR}>:SHELL:-Werror all-warnings>
        # Constants are enumerators, and sizes products of them.
        "SHELL:-Xcompiler -Wno-deprecated-enum-enum-conversion,-fvisibility=hidden,-fno-exceptions,-fno-rtti,-fno-threadsafe-statics,-ffp-contract=off")
    target_include_directories(mezzo_cuda_kernels PRIVATE include src src/backend/cuda/kernels)
    if("90a" IN_LIST cuda_archs)
        target_compile_definitions(mezzo_cuda_kernels PRIVATE MZ_CU_90A) # Hopper's own instructions: in no portable code
    endif()
    list(APPEND cuda_objects $<TARGET_OBJECTS:mezzo_cuda_kernels>)
endif()

# The host side: C.
file(GLOB cuda_host_sources CONFIGURE_DEPENDS src/backend/cuda/*.c)
add_library(mezzo_cuda_host OBJECT ${cuda_host_sources})
mezzo_flags(mezzo_cuda_host)
target_compile_options(mezzo_cuda_host PRIVATE -ffp-contract=off)
target_compile_definitions(mezzo_cuda_host PRIVATE MZ_CUDA_LIBRARIES="${CUDAToolkit_LIBRARY_DIR}")
target_include_directories(mezzo_cuda_host PRIVATE include src)
target_include_directories(mezzo_cuda_host SYSTEM PRIVATE ${CUDAToolkit_INCLUDE_DIRS})
list(APPEND cuda_objects $<TARGET_OBJECTS:mezzo_cuda_host>)

set(cuda_link ${CUDA_cudart_static_LIBRARY} dl rt pthread)
