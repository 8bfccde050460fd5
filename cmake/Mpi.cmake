# MPI, for ranks on CPUs: -DMEZZO_MPI=ON|OFF|AUTO. AUTO takes it where a compiler wrapper or module says where it is.
# Only a plug-in is linked to it, which the library opens when such a rank starts. Result: mezzo_has_mpi.
set(MEZZO_MPI AUTO CACHE STRING "Build the plug-in for MPI: ON, OFF, or AUTO (where MPI is found)")
set_property(CACHE MEZZO_MPI PROPERTY STRINGS ON OFF AUTO)

set(mezzo_has_mpi OFF)
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
    MEZZO_MPI MEZZO_PLUGIN_FOLDER="${CMAKE_INSTALL_FULL_LIBDIR}/mezzo")
