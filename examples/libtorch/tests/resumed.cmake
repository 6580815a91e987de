# cmake "-DRUN=PROGRAM;ARGUMENT…" -DFOLDER=… -P resumed.cmake
#
# FOLDER has a checkpoint of example_libtorch after 150 steps. 150 more from there must end as 300 at once.
function(train result)
  execute_process(COMMAND ${RUN} ${ARGN} RESULT_VARIABLE status OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(NOT status EQUAL 0 OR NOT output MATCHES "([0-9]+ ranks, 300 steps: loss 1[0-9][.][0-9]+, learning rate 0[.]0075), sent")
    message(FATAL_ERROR "exit status ${status}, expected 0 and a line after 300 steps:\n${output}")
  endif()
  set(${result} "${CMAKE_MATCH_1}" PARENT_SCOPE)
endfunction()

train(at_once 300)
train(resumed 150 "${FOLDER}" resume)
if(NOT at_once STREQUAL resumed)
  message(FATAL_ERROR "at once:  ${at_once}\nresumed:  ${resumed}")
endif()
