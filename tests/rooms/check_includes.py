"""The rooms may include downwards only: kernels <- model <- engine <- rl. Also: YAML only in engine/config, no files or
environment in kernels/. usage: check_includes.py SOURCE_DIR"""
import pathlib
import re
import sys

ROOMS = ["kernels", "model", "engine", "rl"]
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.M)
LINK = re.compile(r"LINK\s+([^)]*)\)", re.S)
TERMINAL = pathlib.PurePosixPath("engine/metrics/progress.cpp")  # NO_COLOR and TERM, which every terminal program honours
NOT_IN_KERNELS = ("fstream", "filesystem", "iostream", "yaml-cpp/", "nlohmann/", "spdlog/", "CLI/")


def faults_of(root, path, room):
    text = path.read_text()
    test = path.stem.endswith(("_test", "_bench"))
    for name in INCLUDE.findall(text):
        target = name.split("/")[0]
        if target in ROOMS and ROOMS.index(target) > ROOMS.index(room):
            yield f"{path}: {room}/ may not include {name}"
        if name.startswith("yaml-cpp/") and path.relative_to(root).parts[:2] != ("engine", "config"):
            yield f"{path}: only engine/config may see YAML"
        if room == "kernels" and not test and name.startswith(NOT_IN_KERNELS):
            yield f"{path}: kernels/ does no files or logging ({name})"
    if "getenv" in text and not test and path.relative_to(root) != TERMINAL:
        yield f"{path}: no environment variables as configuration"


def link_faults(root, room):
    text = (root / room / "CMakeLists.txt").read_text()
    declaration = text.split("plumb_test")[0]
    for links in LINK.findall(declaration):
        for higher in ROOMS[ROOMS.index(room) + 1:]:
            if f"plumb_{higher}" in links:
                yield f"{room}/CMakeLists.txt: links plumb_{higher}"


def main():
    root = pathlib.Path(sys.argv[1])
    faults = []
    files = 0
    for room in ROOMS:
        faults += link_faults(root, room)
        for path in sorted((root / room).rglob("*")):
            if path.suffix in (".h", ".cpp", ".cu"):
                files += 1
                faults += faults_of(root, path, room)
    print(f"{files} files, {len(faults)} faults")
    print("\n".join(faults))
    return 1 if faults or files == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
