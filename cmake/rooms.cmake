# How rooms, ops and tests are declared.
if(PLUMB_TESTS)
  find_package(GTest REQUIRED)
  include(GoogleTest)
  configure_file(${CMAKE_SOURCE_DIR}/tests/paths.cpp.in ${CMAKE_BINARY_DIR}/generated/test_paths.cpp @ONLY)
endif()
if(PLUMB_BENCHES)
  find_package(benchmark REQUIRED)
endif()

# plumb_room(NAME SOURCES... [LINK libs...]): a static library plumb_NAME. What it links is what it may include.
function(plumb_room name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  add_library(plumb_${name} STATIC ${ARG_SOURCES})
  target_link_libraries(plumb_${name} PUBLIC plumb_flags ${ARG_LINK} PRIVATE $<BUILD_INTERFACE:plumb_warnings>)
endfunction()

# plumb_test(NAME SOURCES... LINK libs...): one test program; suites whose name contains Slow get the label `slow`
# and are left out of the sanitizer runs. Tests find third-party golden values by PLUMB_SHARED at run time.
function(plumb_test name)
  cmake_parse_arguments(ARG "" "" "SOURCES;LINK" ${ARGN})
  if(NOT PLUMB_TESTS)
    return()
  endif()
  add_executable(${name} ${ARG_SOURCES} ${CMAKE_BINARY_DIR}/generated/test_paths.cpp)
  target_link_libraries(${name} PRIVATE ${ARG_LINK} plumb_warnings GTest::gmock GTest::gtest GTest::gtest_main)
  # Compile time is most of CI's: the tests' own code is optimised lightly (what they test is not), and the programs of many
  # files read the test framework once.
  target_compile_options(${name} PRIVATE -O1)
  if(PLUMB_SANITIZE MATCHES undefined)
    target_compile_options(${name} PRIVATE -fno-sanitize=undefined)  # half of the compile time; what they test keeps it
  endif()
  list(LENGTH ARG_SOURCES files)
  if(files GREATER 6)
    target_precompile_headers(${name} PRIVATE <gmock/gmock.h> <gtest/gtest.h> <filesystem> <functional> <random>)
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST TEST_FILTER "-*Slow*" PROPERTIES TIMEOUT 900 LABELS quick)
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST TEST_FILTER "*Slow*" TEST_SUFFIX "" PROPERTIES TIMEOUT 1800 LABELS slow)
endfunction()

# plumb_op(NAME [SOURCES extra...]): an op by the files of its folder. NAME.h (formula, argument structs), NAME.cpp
# (validate, switch on device), NAME_cpu.cpp, NAME_ref.h (the independent reference) and NAME_test.cpp must exist.
function(plumb_op name)
  cmake_parse_arguments(ARG "" "" "SOURCES" ${ARGN})
  set(dir ${CMAKE_CURRENT_SOURCE_DIR}/${name})
  foreach(file ${name}.h ${name}.cpp ${name}_cpu.cpp ${name}_ref.h ${name}_test.cpp)
    if(NOT EXISTS ${dir}/${file})
      message(FATAL_ERROR "op ${name}: ${dir}/${file} is missing; an op shows its formula, its code, its reference and its test")
    endif()
  endforeach()
  set(sources ${dir}/${name}.cpp ${dir}/${name}_cpu.cpp)
  foreach(file ${ARG_SOURCES})
    list(APPEND sources ${dir}/${file})
  endforeach()
  target_sources(plumb_kernels PRIVATE ${sources})
  set_property(GLOBAL APPEND PROPERTY PLUMB_OP_TESTS ${dir}/${name}_test.cpp)
  if(EXISTS ${dir}/${name}_bench.cpp)
    set_property(GLOBAL APPEND PROPERTY PLUMB_OP_BENCHES ${dir}/${name}_bench.cpp)
  endif()
endfunction()
