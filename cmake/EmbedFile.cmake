# mezzo_embed(target file symbol): makes `const unsigned char SYMBOL[]` and `const size_t SYMBOL_size` of the file's bytes, and
# `const char SYMBOL_sha256[]`, their SHA-256 in hexadecimal, and adds them to the target. A C array rather than a linker's trick: every compiler and object format takes it.
#
# Also the script that writes the array: cmake -DINPUT=… -DOUTPUT=… -DSYMBOL=… -P EmbedFile.cmake

if(CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
    file(READ "${INPUT}" bytes HEX)
    file(SHA256 "${INPUT}" sha256)
    string(LENGTH "${bytes}" size)
    math(EXPR size "${size} / 2")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
    string(REGEX REPLACE "(0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,0x..,)" "\\1\n" bytes "${bytes}")
    file(WRITE "${OUTPUT}" "#include <stddef.h>\n\nextern const unsigned char ${SYMBOL}[${size}];\n"
        "extern const char ${SYMBOL}_sha256[65];\nconst char ${SYMBOL}_sha256[65] = \"${sha256}\";\n"
        "extern const size_t ${SYMBOL}_size;\nconst size_t ${SYMBOL}_size = ${size};\n"
        "const unsigned char ${SYMBOL}[${size}] = {\n${bytes}};\n")
    return()
endif()

set(embed_script ${CMAKE_CURRENT_LIST_FILE})
function(mezzo_embed target file symbol)
    set(output ${CMAKE_BINARY_DIR}/embedded/${symbol}.c)
    add_custom_command(OUTPUT ${output} DEPENDS ${file} ${embed_script} VERBATIM
        COMMAND ${CMAKE_COMMAND} -DINPUT=${file} -DOUTPUT=${output} -DSYMBOL=${symbol} -P ${embed_script}
        COMMENT "Embedding ${file}")
    target_sources(${target} PRIVATE ${output})
endfunction()
