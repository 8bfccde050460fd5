# MPI, for ranks on CPUs: -DMEZZO_MPI=ON|OFF|AUTO. AUTO takes it where a compiler wrapper or module says where it is.
# Only plug-ins are linked to it and to PMIx, by which `mezzo launch` tells such ranks who they are; the library opens
# them when it needs them. Results: mezzo_has_mpi, mezzo_has_pmix.
set(MEZZO_MPI AUTO CACHE STRING "Build the plug-in for MPI: ON, OFF, or AUTO (where MPI is found)")
set_property(CACHE MEZZO_MPI PROPERTY STRINGS ON OFF AUTO)

set(mezzo_has_mpi OFF)
set(mezzo_has_pmix OFF)
if(MEZZO_MPI STREQUAL "OFF")
    return()
endif()
find_package(MPI COMPONENTS C QUIET)
if(NOT MPI_C_FOUND)
    if(MEZZO_MPI STREQUAL "ON")
        message(FATAL_ERROR "MEZZO_MPI=ON needs an MPI with its headers (Debian: libopenmpi-dev)")
    endif()
    message(STATUS "MPI: not found (package libopenmpi-dev); no ranks on CPUs")
    return()
endif()
set(mezzo_has_mpi ON)
message(STATUS "MPI ${MPI_C_VERSION}: ranks on CPUs by ${MPI_C_LIBRARIES}")
target_compile_definitions(mezzo_objects PRIVATE
    MEZZO_MPI MEZZO_PLUGIN_BESIDE="../${CMAKE_INSTALL_LIBDIR}/mezzo")
# A wheel is installed anywhere; it is built with a prefix below /tmp, where anybody may put a plug-in later.
if(NOT SKBUILD)
    target_compile_definitions(mezzo_objects PRIVATE MEZZO_PLUGIN_FOLDER="${CMAKE_INSTALL_FULL_LIBDIR}/mezzo")
endif()
pkg_check_modules(PMIX QUIET pmix)
if(PMIX_FOUND)
    set(mezzo_has_pmix ON)
    target_compile_definitions(mezzo_objects PRIVATE MEZZO_PMIX)
else()
    message(STATUS "PMIx: not found (package libpmix-dev); mezzo launch starts no ranks on CPUs, mpirun does")
endif()
