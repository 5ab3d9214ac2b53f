# cmake --install: the binary, the four libraries with their headers, and a package that find_package(plumb) finds.
include(CMakePackageConfigHelpers)
include(GNUInstallDirs)

set(plumb_rooms plumb_kernels plumb_model)
foreach(room plumb_engine plumb_rl)
  if(TARGET ${room})
    list(APPEND plumb_rooms ${room})
  endif()
endforeach()
install(TARGETS plumb_flags ${plumb_rooms} EXPORT plumb ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR})
if(TARGET plumb)
  install(TARGETS plumb RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
endif()
foreach(room kernels model engine rl)
  install(DIRECTORY ${room} DESTINATION include/plumb FILES_MATCHING PATTERN "*.h" PATTERN "*_ref.h" EXCLUDE)
endforeach()
install(DIRECTORY configs DESTINATION ${CMAKE_INSTALL_DATADIR}/plumb)
install(EXPORT plumb NAMESPACE plumb:: FILE plumb-targets.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/plumb)
configure_package_config_file(cmake/plumb-config.cmake.in ${CMAKE_BINARY_DIR}/plumb-config.cmake
  INSTALL_DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/plumb)
write_basic_package_version_file(${CMAKE_BINARY_DIR}/plumb-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${CMAKE_BINARY_DIR}/plumb-config.cmake ${CMAKE_BINARY_DIR}/plumb-config-version.cmake
  DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/plumb)
