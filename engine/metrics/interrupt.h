// Ctrl-C and SIGTERM: the first asks the loop to save and stop, the second ends the process at once.
#pragma once

namespace plumb {

/// From now on SIGINT and SIGTERM set a flag; a second one exits with 130 without cleaning up.
void install_interrupt_handlers();
bool interrupt_requested();

}  // namespace plumb
