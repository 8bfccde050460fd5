# Man pages, printed by the command that was just built, and shell completion. Cross-compiling, the command runs through
# CMAKE_CROSSCOMPILING_EMULATOR, or -DMEZZO_HOST_TOOL=FILE names one of the same version for this machine; else the pages are left out.
set(completion ${CMAKE_SOURCE_DIR}/cli/completion)
install(FILES ${completion}/mezzo.bash DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions RENAME mezzo)
install(FILES ${completion}/mezzo.zsh DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions RENAME _mezzo)
install(FILES ${completion}/mezzo.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d)

set(MEZZO_HOST_TOOL "" CACHE FILEPATH "A mezzo command that runs here, to print man pages when cross-compiling")
set(guides_tool $<TARGET_FILE:mezzo>)
if(MEZZO_HOST_TOOL)
    set(guides_tool ${MEZZO_HOST_TOOL})
elseif(CMAKE_CROSSCOMPILING AND CMAKE_CROSSCOMPILING_EMULATOR)
    set(guides_tool ${CMAKE_CROSSCOMPILING_EMULATOR} $<TARGET_FILE:mezzo>)
elseif(CMAKE_CROSSCOMPILING)
    message(STATUS "cross-compiling without MEZZO_HOST_TOOL: no man pages")
    add_custom_target(mezzo_guides)
    return()
endif()

set(guides ${CMAKE_BINARY_DIR}/guides)
file(MAKE_DIRECTORY ${guides})
set(guide_files "")
function(mezzo_guide name)
    add_custom_command(OUTPUT ${guides}/${name} DEPENDS mezzo VERBATIM
        COMMAND ${CMAKE_COMMAND} "-DTOOL=${guides_tool}" "-DWORDS=help;${ARGN}" -DOUTPUT=${guides}/${name}
                -P ${CMAKE_SOURCE_DIR}/cmake/RunToFile.cmake)
    set(guide_files ${guide_files} ${guides}/${name} PARENT_SCOPE)
endfunction()

# Every subcommand has a page.
file(STRINGS ${CMAKE_SOURCE_DIR}/cli/commands.txt subcommands REGEX "^command ")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS cli/commands.txt)
mezzo_guide(mezzo.1 --man)
foreach(subcommand ${subcommands})
    string(REPLACE "command " "" subcommand ${subcommand})
    mezzo_guide(mezzo-${subcommand}.1 --man ${subcommand})
endforeach()
add_custom_target(mezzo_guides ALL DEPENDS ${guide_files})

install(FILES ${guide_files} DESTINATION ${CMAKE_INSTALL_MANDIR}/man1)
