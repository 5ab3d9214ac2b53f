# plumb_preset_table(TARGET): the numerics presets of configs/numerics/*.yaml become C++ that TARGET compiles, by a program built
# for it: kernels/ reads no files, and the installed program needs none.
function(plumb_preset_table target)
  set(out ${CMAKE_BINARY_DIR}/generated/kernels/numerics)
  file(GLOB files CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/configs/numerics/*.yaml)
  # It cannot link the rooms: the table is part of the lowest one. So it compiles the few files that it needs.
  add_executable(plumb_preset_table
    ${CMAKE_SOURCE_DIR}/engine/config/preset_table/main.cpp
    ${CMAKE_SOURCE_DIR}/engine/config/node.cpp
    ${CMAKE_SOURCE_DIR}/engine/config/numerics_facts.cpp
    ${CMAKE_SOURCE_DIR}/engine/config/schema.cpp
    ${CMAKE_SOURCE_DIR}/kernels/core/nearest.cpp
    ${CMAKE_SOURCE_DIR}/kernels/numerics/numerics.cpp
    ${CMAKE_SOURCE_DIR}/model/files/files.cpp
    ${CMAKE_SOURCE_DIR}/model/files/strict_json.cpp)
  target_link_libraries(plumb_preset_table PRIVATE plumb_flags plumb_warnings nlohmann_json::nlohmann_json yaml-cpp fmt::fmt PkgConfig::UTF8PROC)
  if(PLUMB_SANITIZE)
    # A tool of the build: it needs to be there soon, and the tests run the same files under the sanitizers.
    target_compile_options(plumb_preset_table PRIVATE -O0 -fno-sanitize=all)
  endif()
  # preset_masks.h keeps its time when its text is the same, so it is no OUTPUT that could look stale.
  add_custom_command(
    OUTPUT ${out}/preset_table.cpp
    BYPRODUCTS ${out}/preset_masks.h
    COMMAND plumb_preset_table ${out}/preset_table.cpp ${out}/preset_masks.h ${files}
    DEPENDS plumb_preset_table ${files}
    COMMENT "Numerics presets from configs/numerics")
  target_sources(${target} PRIVATE ${out}/preset_table.cpp)
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${CMAKE_BINARY_DIR}/generated>)
  install(FILES ${out}/preset_masks.h DESTINATION include/plumb/kernels/numerics)
endfunction()
