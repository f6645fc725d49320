# What every target of blockd shares: the language, the warnings, the sanitizers, and include paths
# that show a target its own module and those that it links, and nothing else.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()
# The headers of gRPC and GoogleTest take most of a source's time. The sanitizers' presets compile several
# sources as one (CMAKE_UNITY_BUILD); elsewhere each file shows what it includes.
if(BLOCKD_SANITIZE)
  # What a sanitizer finds ends the test, undefined behaviour too.
  add_compile_options(-fsanitize=${BLOCKD_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${BLOCKD_SANITIZE})
  # GCC's flow warnings misread instrumented code; the other builds have them.
  add_compile_options(-Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread -Wno-restrict
                      -Wno-maybe-uninitialized)
endif()
if(BLOCKD_SANITIZE STREQUAL "thread")
  # The distribution's Abseil and gRPC are not instrumented; this library, loaded before them, says
  # which order their locks and queues make.
  set(tsan_library ${PROJECT_BINARY_DIR}/libblockd_tsan.so)
  set(tsan_sources ${PROJECT_SOURCE_DIR}/tests/support/tsan_absl.cc)
  if(BLOCKD_BUILD_SERVER)
    list(APPEND tsan_sources ${PROJECT_SOURCE_DIR}/tests/support/tsan_grpc.cc)
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${tsan_sources})
  execute_process(
    COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -O1 -g1 -Wall -Wextra -Werror -shared -fPIC -fsanitize=thread
            ${tsan_sources} -o ${tsan_library} -labsl_synchronization
    COMMAND_ERROR_IS_FATAL ANY)
  string(PREPEND CMAKE_EXE_LINKER_FLAGS
         "-Wl,--no-as-needed ${tsan_library} -Wl,-rpath,${PROJECT_BINARY_DIR} ")
endif()

# blockd_module(target FOLDER folder): `#include "blockd/<folder>/x.h"` works for this target and for
# those that link it, because its include path holds a link to that one folder. A target that does not
# link a module cannot include its headers: the dependency rule is enforced by the build.
function(blockd_module target)
  cmake_parse_arguments(ARG "" "FOLDER" "" ${ARGN})
  string(MAKE_C_IDENTIFIER ${ARG_FOLDER} name)
  set(root ${PROJECT_BINARY_DIR}/include/${name})
  get_filename_component(parent ${root}/blockd/${ARG_FOLDER} DIRECTORY)
  file(MAKE_DIRECTORY ${parent})
  if(NOT EXISTS ${root}/blockd/${ARG_FOLDER})
    file(CREATE_LINK ${PROJECT_SOURCE_DIR}/${ARG_FOLDER} ${root}/blockd/${ARG_FOLDER} SYMBOLIC)
  endif()
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${root}> $<INSTALL_INTERFACE:include>)
  blockd_warnings(${target})
endfunction()

function(blockd_warnings target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror>)
endfunction()
