# Tests of a program's exit status and output.
include_guard(GLOBAL)

# slamb_test_exit(<test> STATUS <exit status> MESSAGE <regular expression> [WRITES <file>…] [LEAVES <file>…]
#                 [ONTO <file>] COMMAND <program> <argument>…): see tests/expect_exit.cmake.
function(slamb_test_exit test)
  cmake_parse_arguments(PARSE_ARGV 1 run "" "STATUS;MESSAGE;ONTO" "WRITES;LEAVES;COMMAND")
  list(POP_FRONT run_COMMAND program)
  add_test(NAME "${test}"
           COMMAND "${CMAKE_COMMAND}" "-DSTATUS=${run_STATUS}" "-DMESSAGE=${run_MESSAGE}" "-DWRITES=${run_WRITES}"
                   "-DLEAVES=${run_LEAVES}" "-DONTO=${run_ONTO}" -P "${PROJECT_SOURCE_DIR}/tests/expect_exit.cmake" --
                   "$<TARGET_FILE:${program}>" ${run_COMMAND})
endfunction()
