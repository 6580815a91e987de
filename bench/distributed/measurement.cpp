#include "measurement.hpp"

#include <algorithm>

namespace bench::distributed {

namespace {

double median_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const std::size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2.0;
}

}  // namespace

double mean_of_medians(const std::vector<double>& seconds, std::uint64_t period) {
  double sum = 0.0;
  for (std::uint64_t place = 0; place < period; ++place) {
    std::vector<double> alike;
    for (std::size_t i = place; i < seconds.size(); i += period) alike.push_back(seconds[i]);
    sum += median_of(std::move(alike));
  }
  return sum / static_cast<double>(period);
}

std::vector<double> largest_of_ranks(std::vector<double> values) {
  std::vector<double> largest(values.size());
  MPI_Allreduce(values.data(), largest.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return largest;
}

bool goes_on(const settings& chosen, std::uint64_t steps, double seconds) {
  int answer = steps < chosen.steps || seconds < chosen.seconds ? 1 : 0;
  MPI_Bcast(&answer, 1, MPI_INT, 0, MPI_COMM_WORLD);
  return answer != 0;
}

}  // namespace bench::distributed
