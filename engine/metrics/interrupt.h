// Ctrl-C and SIGTERM: the first asks the loop to save and stop, the second ends the process at once.
#pragma once

namespace plumb {

/// The exit code of what was interrupted.
inline constexpr int kInterrupted = 130;

/// From now on SIGINT and SIGTERM set a flag; a second one exits with kInterrupted without cleaning up.
void install_interrupt_handlers();
bool interrupt_requested();

}  // namespace plumb
