# What every target of blockd shares: the language, the warnings, the sanitizers, the include paths.

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
  # A GPU's compiler reads a source once for the host and once for each device. ccache would compare what the
  # host sees of it and take an old object where only device code has changed; so it compares whole files.
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_COMMAND} -E env CCACHE_DEPEND=1 ${CCACHE_PROGRAM})
endif()
# The headers of gRPC and GoogleTest take most of a source's time. The sanitizers' presets compile several
# sources as one (CMAKE_UNITY_BUILD); elsewhere each file shows what it includes.
if(BLOCKD_SANITIZE)
  # What a sanitizer finds ends the test, undefined behaviour too.
  add_compile_options(-fsanitize=${BLOCKD_SANITIZE} -fno-sanitize-recover=all
                      -fno-omit-frame-pointer -g1)
  add_link_options(-fsanitize=${BLOCKD_SANITIZE})
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # Its flow warnings misread instrumented code; the other builds have them.
    add_compile_options(-Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread
                        -Wno-restrict -Wno-maybe-uninitialized)
  endif()
endif()
if(BLOCKD_FUZZ)
  # The fuzzer sees which branches its input takes; tests/fuzz links the fuzzer itself.
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
if(BLOCKD_SANITIZE STREQUAL "thread")
  # The distribution's Abseil and gRPC are not instrumented; this library, loaded before them, says
  # which order their locks and queues make.
  set(tsan_library ${PROJECT_BINARY_DIR}/libblockd_tsan.so)
  set(tsan_sources ${PROJECT_SOURCE_DIR}/tests/support/hooks/tsan_absl.cc)
  if(BLOCKD_BUILD_SERVER)
    list(APPEND tsan_sources ${PROJECT_SOURCE_DIR}/tests/support/hooks/tsan_grpc.cc)
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${tsan_sources})
  execute_process(
    COMMAND ${CMAKE_CXX_COMPILER} -std=c++20 -O1 -g1 -Wall -Wextra -Werror -shared -fPIC -fsanitize=thread
            ${tsan_sources} -o ${tsan_library} -labsl_synchronization -labsl_status -labsl_cord
    COMMAND_ERROR_IS_FATAL ANY)
  string(PREPEND CMAKE_EXE_LINKER_FLAGS
         "-Wl,--no-as-needed ${tsan_library} -Wl,-rpath,${PROJECT_BINARY_DIR} ")
endif()

# CMake 3.25 expects nvToolsExt of a CUDA toolkit, which those from 13.0 on no longer have.
if(BLOCKD_CUDA AND NOT TARGET CUDA::nvToolsExt)
  add_library(CUDA::nvToolsExt INTERFACE IMPORTED)
endif()

# An include of ours is the file's path from the root, "server/core/solver_core.h"; who may include whom,
# tests/lint/check_tree.sh knows. Public headers lie under include/ of their module, "blockd/engine/solver.h".
include_directories(${PROJECT_SOURCE_DIR})

# blockd_public_headers(target FOLDER folder): the headers under folder/include are seen by whoever links
# the target, in this build and where it is installed.
function(blockd_public_headers target)
  cmake_parse_arguments(ARG "" "FOLDER" "" ${ARGN})
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/${ARG_FOLDER}/include> $<INSTALL_INTERFACE:include>)
endfunction()

function(blockd_warnings target)
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra -Werror>)
endfunction()
