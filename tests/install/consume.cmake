# cmake -D build= -D component= -D source= -D work= -D generator= -D sanitize= -P consume.cmake
function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ECHO STDOUT COMMAND_ERROR_IS_FATAL ANY)
endfunction()

file(REMOVE_RECURSE ${work})
# Only this component, so that it is seen to stand alone.
run(${CMAKE_COMMAND} --install ${build} --component ${component} --prefix ${work}/prefix)
set(flags "")
if(sanitize)
  set(flags "-fsanitize=${sanitize}")
endif()
run(${CMAKE_COMMAND} -S ${source} -B ${work}/build -G ${generator} -D CMAKE_CXX_FLAGS=${flags}
    -D CMAKE_PREFIX_PATH=${work}/prefix -D CMAKE_FIND_USE_PACKAGE_REGISTRY=OFF)
run(${CMAKE_COMMAND} --build ${work}/build)
run(${work}/build/consumer)
