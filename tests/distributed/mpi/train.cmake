# cmake -DMPIRUN=… -DPROGRAM=slamb_train -DSHARDS=… -DWORK=… -P train.cmake: checks that four processes train as four threads do,
# bit for bit: every recipe's parameters, and the loss at every step.
set(options --steps 40 --seeds 1 --batch 64 --hash --shards ${SHARDS})
math(EXPR ranks "4 / ${SHARDS}")
file(MAKE_DIRECTORY "${WORK}")
execute_process(COMMAND "${PROGRAM}" ${options} --ranks ${ranks} --csv "${WORK}/threads.csv" OUTPUT_VARIABLE by_threads
                COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND ${MPIRUN} 4 "${PROGRAM}" ${options} --csv "${WORK}/processes.csv" OUTPUT_VARIABLE by_processes
                COMMAND_ERROR_IS_FATAL ANY TIMEOUT 200)
foreach(ranks IN ITEMS threads processes)
  string(REGEX MATCHALL "[^\n]*final parameters [0-9a-f]+" hashes_${ranks} "${by_${ranks}}")
  list(LENGTH hashes_${ranks} count)
  if(count LESS 7)
    message(FATAL_ERROR "${count} hashes, expected one of each optimizer:\n${by_${ranks}}")
  endif()
endforeach()
if(NOT hashes_threads STREQUAL hashes_processes)
  message(FATAL_ERROR "By threads:\n${by_threads}\nby processes:\n${by_processes}")
endif()
file(SHA256 "${WORK}/threads.csv" threads)
file(SHA256 "${WORK}/processes.csv" processes)
if(NOT threads STREQUAL processes)
  message(FATAL_ERROR "Other losses, bytes or phases: ${WORK}/threads.csv and ${WORK}/processes.csv")
endif()
