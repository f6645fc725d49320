# What others link and run, installed:
#
#   find_package(blockd REQUIRED COMPONENTS engine)   blockd::engine: the solver, in your own process
#   find_package(blockd REQUIRED COMPONENTS client)   blockd::client, blockd::proto: a server's caller
#
# `cmake --install <build> --component <c>`: `engine`, `client` (libraries and headers) or `programs`
# (blockd and blockctl); without --component, all of them.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(BLOCKD_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/blockd)

# Targets of one component with the public headers of their module: what lies under its include/.
function(blockd_install_library component)
  cmake_parse_arguments(ARG "" "FOLDER" "TARGETS" ${ARGN})
  install(TARGETS ${ARG_TARGETS} EXPORT blockd-${component}
          ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT ${component})
  install(EXPORT blockd-${component} NAMESPACE blockd:: FILE blockd-${component}-targets.cmake
          DESTINATION ${BLOCKD_PACKAGE_DIR} COMPONENT ${component})
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/${ARG_FOLDER}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          COMPONENT ${component})
endfunction()

blockd_install_library(engine FOLDER engine TARGETS blockd_engine)
if(BLOCKD_BUILD_SERVER)
  blockd_install_library(client FOLDER client TARGETS blockd_client blockd_proto)
  install(DIRECTORY ${PROJECT_BINARY_DIR}/proto/generated/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}
          COMPONENT client FILES_MATCHING PATTERN "*.pb.h")
  install(DIRECTORY ${PROJECT_SOURCE_DIR}/proto/ DESTINATION ${CMAKE_INSTALL_DATADIR}/blockd/proto
          COMPONENT client FILES_MATCHING PATTERN "*.proto")
  set_target_properties(blockd blockctl PROPERTIES
                        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
  install(TARGETS blockd blockctl RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT programs)
endif()

configure_package_config_file(
  ${CMAKE_CURRENT_LIST_DIR}/blockd-config.cmake.in ${PROJECT_BINARY_DIR}/blockd-config.cmake
  INSTALL_DESTINATION ${BLOCKD_PACKAGE_DIR})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/blockd-config-version.cmake
                                 COMPATIBILITY SameMinorVersion)
foreach(component engine client)
  install(FILES ${PROJECT_BINARY_DIR}/blockd-config.cmake
                ${PROJECT_BINARY_DIR}/blockd-config-version.cmake
          DESTINATION ${BLOCKD_PACKAGE_DIR} COMPONENT ${component})
endforeach()
