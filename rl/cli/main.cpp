#include "rl/cli/commands.h"

int main(int argc, char** argv) { return plumb::run_command_line(argc, argv); }
