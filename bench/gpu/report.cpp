#include <cstdio>
#include <ostream>

#include "step_result.hpp"
#include "table.hpp"

namespace bench {
namespace {

std::string number(double value, int digits) {
  char text[64];
  std::snprintf(text, sizeof(text), "%.*f", digits, value);
  return text;
}

std::string quoted(const std::string& name, bool markdown) { return markdown ? "`" + name + "`" : name; }

void write_steps(std::ostream& to, const std::vector<step_result>& results, bool markdown) {
  table all({"step", "ranks", "params", "ns/param", "ms", "fastest", "slowest", "bytes/param", "GB/s", "of copy",
             "copy GB/s", "memcpy GB/s", "launches", "waits"});
  for (const step_result& r : results)
    all.add({quoted(r.name, markdown), std::to_string(r.ranks), std::to_string(r.elements),
             number(r.seconds * 1e9 / static_cast<double>(r.elements), 4), number(r.seconds * 1e3, 3),
             number(r.fastest * 1e3, 3), number(r.slowest * 1e3, 3), number(r.bytes, 1),
             number(r.bytes_per_second() * 1e-9, 0), number(r.bytes_per_second() / r.copy.kernel, 2),
             number(r.copy.kernel * 1e-9, 0), number(r.copy.memcpy * 1e-9, 0), std::to_string(r.launches),
             std::to_string(r.waits)});
  all.write(to, markdown);
}

void write_passes(std::ostream& to, const step_result& r, bool markdown) {
  table all({r.name, "calls", "us", "bytes/param", "GB/s", "of copy"});
  double seconds = 0.0;
  std::size_t calls = 0;
  for (const pass_result& pass : r.passes) {
    seconds += pass.seconds;
    calls += pass.calls;
    const bool has_rate = pass.bytes.has_value() && pass.seconds > 0.0;
    const double rate = has_rate ? *pass.bytes * static_cast<double>(r.elements) / pass.seconds : 0.0;
    all.add({quoted(pass.name, markdown), std::to_string(pass.calls), number(pass.seconds * 1e6, 1),
             pass.bytes ? number(*pass.bytes, 2) : "-", has_rate ? number(rate * 1e-9, 0) : "-",
             has_rate ? number(rate / r.copy.kernel, 2) : "-"});
  }
  all.add({"all", std::to_string(calls), number(seconds * 1e6, 1), "", "", ""});
  to << '\n';
  all.write(to, markdown);
}

}  // namespace

void write_report(std::ostream& to, const std::vector<step_result>& results, bool markdown) {
  if (results.empty()) return;
  const char* const before = markdown ? "## " : "";
  to << before << "Steps\n\n"
     << "Time is a step's on the device, the median over batches of steps that are enqueued without waiting; bytes are "
        "counted from what passes declare, and bytes a second are those of all ranks. A copy counts 8 bytes an "
        "element.\n\n";
  write_steps(to, results, markdown);
  to << '\n'
     << before
     << "Passes\n\nOne rank; the device calls of a step, each between two events, which take a few microseconds "
        "themselves. Calls of the communicator are not among them.\n";
  for (const step_result& r : results)
    if (!r.passes.empty()) write_passes(to, r, markdown);
}

}  // namespace bench
