# cmake -DTOOL=… -DWORDS=… -DOUTPUT=FILE -P RunToFile.cmake: a command's output as a file, which appears only where it succeeds.
execute_process(COMMAND ${TOOL} ${WORDS} OUTPUT_FILE ${OUTPUT}.part RESULT_VARIABLE failed)
if(failed)
    message(FATAL_ERROR "${TOOL} ${WORDS}: exit code ${failed}")
endif()
file(RENAME ${OUTPUT}.part ${OUTPUT})
