/* The optimizers of slamb_gpt2.h, from C, over the processes of mpirun: against AdamW and LAMB in double precision, in bits, resumed,
   and wrong arguments. The last line has the number of checks of all processes; the exit status is 1 if one failed. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "slamb_gpt2.h"

/* A GPT-2 of 3 layers and 4 channels, with 16 rows of wte and 6 of wpe. */
enum { elements = 828, channels = 4, vocabulary = 13, positions = 5, steps = 20 };
static const size_t right_sizes[SLAMB_GPT2_TENSORS] = {64, 24, 12, 12, 144, 36, 48, 12, 12, 12, 192, 48, 192, 12, 4, 4};
static const size_t layers_of[SLAMB_GPT2_TENSORS] = {1, 1, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 3, 1, 1};
static const int is_matrix[SLAMB_GPT2_TENSORS] = {1, 1, 0, 0, 1, 0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0};
static const double beta1 = 0.9, beta2 = 0.99, epsilon = 1e-6, weight_decay = 0.1, rate = 0.01;

static int checks = 0, failures = 0, rank = 0, processes = 1;

static void check_that(int is_right, const char* what, int line) {
  ++checks;
  if (is_right) return;
  ++failures;
  fprintf(stderr, "main.c:%d: rank %d: %s is wrong; the last error: %s\n", line, rank, what, slamb_gpt2_error());
}
#define CHECK(condition) check_that((condition), #condition, __LINE__)

/* A number in [-1, 1) from three others. */
static float noise(unsigned a, unsigned b, unsigned c) {
  unsigned x = a * 2654435761u ^ b * 2246822519u ^ c * 3266489917u;
  x = (x ^ (x >> 15)) * 2246822519u;
  x ^= x >> 13;
  return (float)(x % 65536u) / 32768.0f - 1.0f;
}

static float parameters[elements], gradients[elements];
static double p[elements], m[elements], v[elements];

static void start(void) {
  for (unsigned i = 0; i < elements; ++i) {
    p[i] = parameters[i] = noise(i, 1000, 0);
    m[i] = v[i] = 0.0;
  }
}

/* The gradient of one process. Rows of wte and wpe that no token and no position uses have none. */
static float gradient(unsigned i, unsigned step, unsigned of_rank) {
  if (i < 64 && i >= vocabulary * channels) return 0.0f;
  if (i >= 64 + positions * channels && i < 64 + 24) return 0.0f;
  return noise(i, step, of_rank + 1) + 0.5f * noise(i, 2000, 0);
}

/* A step in double precision: docs/algorithms/lamb.md, with the mean gradient of all processes. */
static void oracle_step(int is_lamb, unsigned step) {
  unsigned first = 0;
  for (int t = 0; t < SLAMB_GPT2_TENSORS; ++t) {
    const unsigned size = (unsigned)(right_sizes[t] / layers_of[t]);
    for (size_t layer = 0; layer < layers_of[t]; ++layer, first += size) {
      double u[192], norm_of_p = 0.0, norm_of_u = 0.0;
      for (unsigned k = 0; k < size; ++k) {
        const unsigned i = first + k;
        double g = 0.0;
        for (int r = 0; r < processes; ++r) g += gradient(i, step, (unsigned)r) / processes;
        m[i] = beta1 * m[i] + (1 - beta1) * g;
        v[i] = beta2 * v[i] + (1 - beta2) * g * g;
        u[k] = m[i] / (1 - pow(beta1, step)) / (sqrt(v[i] / (1 - pow(beta2, step))) + epsilon);
        if (is_matrix[t]) u[k] += weight_decay * p[i];
        norm_of_p += p[i] * p[i];
        norm_of_u += u[k] * u[k];
      }
      const double ratio = is_lamb && is_matrix[t] ? sqrt(norm_of_p / norm_of_u) : 1.0;
      for (unsigned k = 0; k < size; ++k) p[first + k] -= rate * ratio * u[k];
    }
  }
}

static slamb_gpt2_options options_of(const char* optimizer) {
  const slamb_gpt2_options options = {.optimizer = optimizer,
                                      .beta1 = beta1,
                                      .beta2 = beta2,
                                      .epsilon = epsilon,
                                      .weight_decay = weight_decay,
                                      .warm_up_steps = 5,
                                      .vocabulary = vocabulary,
                                      .positions = positions,
                                      .threads = 1};
  return options;
}

static slamb_gpt2* create(const char* optimizer) {
  const slamb_gpt2_options options = options_of(optimizer);
  return slamb_gpt2_create(parameters, gradients, right_sizes, &options, MPI_COMM_WORLD);
}

static slamb_gpt2* create_or_abort(const char* optimizer) {
  slamb_gpt2* const own = create(optimizer);
  CHECK(own != NULL);
  if (own == NULL) MPI_Abort(MPI_COMM_WORLD, 1);
  return own;
}

static void take_steps(slamb_gpt2* own, unsigned first, unsigned last) {
  for (unsigned step = first; step <= last; ++step) {
    for (unsigned i = 0; i < elements; ++i) gradients[i] = gradient(i, step, (unsigned)rank);
    CHECK(slamb_gpt2_step(own, rate) == 0);
  }
}

/* Trains, and returns the bytes that this process has sent. */
static unsigned long long train(const char* optimizer) {
  start();
  slamb_gpt2* const own = create_or_abort(optimizer);
  take_steps(own, 1, steps);
  const unsigned long long sent = slamb_gpt2_sent_bytes(own);
  slamb_gpt2_free(own);
  float of_first[elements];
  memcpy(of_first, parameters, sizeof parameters);
  MPI_Bcast(of_first, elements, MPI_FLOAT, 0, MPI_COMM_WORLD);
  CHECK(memcmp(of_first, parameters, sizeof parameters) == 0);
  return sent;
}

static double distance_from_oracle(void) {
  double largest = 0.0;
  for (unsigned i = 0; i < elements; ++i) {
    const double error = fabs(parameters[i] - p[i]);
    if (!(error <= largest)) largest = error; /* also if it is no number */
  }
  return largest;
}

static void check_values(void) {
  unsigned long long dense = 0;
  for (int is_lamb = 0; is_lamb <= 1; ++is_lamb) {
    dense = train(is_lamb ? "lamb" : "adamw");
    CHECK(distance_from_oracle() > 0.05); /* the oracle has not moved */
    for (unsigned step = 1; step <= steps; ++step) oracle_step(is_lamb, step);
    CHECK(distance_from_oracle() < 1e-5);
  }
  CHECK((dense > 0) == (processes > 1));

  /* In bits: fewer bytes, and nearly LAMB's direction. Unused rows only decay, as in LAMB; as bits they would move by the rate in each
     step. */
  const char* const compressed[] = {"lamb+int4", "one_bit_lamb"};
  const double least_cosine[] = {0.99, 0.6}; /* one_bit_lamb has no bias correction, and freezes the variance */
  for (int c = 0; c < 2; ++c) {
    const unsigned long long sent = train(compressed[c]);
    CHECK(processes == 1 ? sent == 0 : sent < dense);
    double product = 0.0, own = 0.0, of_lamb = 0.0;
    for (unsigned step = 1; step <= steps; ++step) oracle_step(1, step);
    for (unsigned i = 0; i < elements; ++i) {
      const double way = parameters[i] - noise(i, 1000, 0), way_of_lamb = p[i] - noise(i, 1000, 0);
      product += way * way_of_lamb;
      own += way * way;
      of_lamb += way_of_lamb * way_of_lamb;
    }
    CHECK(product > least_cosine[c] * sqrt(own * of_lamb));
    for (unsigned i = vocabulary * channels + 1; i < 64; ++i) {
      const double start_of_first = noise(i - 1, 1000, 0), start_of_this = noise(i, 1000, 0);
      CHECK(fabs(parameters[i] * start_of_first - parameters[i - 1] * start_of_this) < 1e-5);
    }
  }
}

static int has_said(const char* reason) { return strstr(slamb_gpt2_error(), reason) != NULL; }

/* Saved in the middle, and continued by another optimizer, which had other parameters: the bits of a training without a break. */
static void check_resumed(void) {
  enum { half = steps / 2 };
  char path[64];
  float uninterrupted[elements], saved[elements];
  snprintf(path, sizeof path, "slamb_gpt2_tests-%d-of-%d.state", rank, processes);
  start();
  slamb_gpt2* own = create_or_abort("one_bit_lamb");
  take_steps(own, 1, half);
  CHECK(slamb_gpt2_save(own, path) == 0);
  memcpy(saved, parameters, sizeof saved);
  take_steps(own, half + 1, steps);
  slamb_gpt2_free(own);
  memcpy(uninterrupted, parameters, sizeof uninterrupted);
  CHECK(memcmp(uninterrupted, saved, sizeof saved) != 0);

  start();
  own = create_or_abort("one_bit_lamb");
  take_steps(own, 1, 2);
  CHECK(slamb_gpt2_load(own, path) == 0);
  CHECK(memcmp(parameters, saved, sizeof saved) == 0);
  take_steps(own, half + 1, steps);
  CHECK(memcmp(parameters, uninterrupted, sizeof uninterrupted) == 0);

  CHECK(slamb_gpt2_save(own, "no_such_folder/state") == 1);
  CHECK(has_said("no_such_folder/state: No such file"));
  CHECK(slamb_gpt2_load(own, "no_such_file") == 1);
  CHECK(has_said("no_such_file: No such file"));
  CHECK(slamb_gpt2_save(own, NULL) == 1);
  CHECK(has_said("path is NULL"));
  CHECK(slamb_gpt2_load(own, NULL) == 1);
  CHECK(has_said("path is NULL"));
  CHECK(memcmp(parameters, uninterrupted, sizeof uninterrupted) == 0);
  slamb_gpt2_free(own);
  own = create_or_abort("lamb");
  CHECK(slamb_gpt2_load(own, path) == 1);
  CHECK(has_said("holds the state of another optimizer"));
  CHECK(memcmp(parameters, uninterrupted, sizeof uninterrupted) == 0);
  slamb_gpt2_free(own);
  remove(path);
}

/* A gradient that is not finite on the last process: all processes leave the parameters as they are. */
static void check_skipped(const char* optimizer) {
  enum { first = 6 }; /* more than the warm-up of one_bit_lamb */
  float before[elements];
  start();
  slamb_gpt2* const own = create_or_abort(optimizer);
  take_steps(own, 1, first);
  CHECK(slamb_gpt2_skipped_steps(own) == 0);
  memcpy(before, parameters, sizeof before);
  if (rank == processes - 1) gradients[elements / 2] = NAN;
  CHECK(slamb_gpt2_step(own, rate) == 0);
  CHECK(slamb_gpt2_skipped_steps(own) == 1);
  CHECK(memcmp(parameters, before, sizeof before) == 0);
  take_steps(own, first + 1, first + 1);
  CHECK(slamb_gpt2_skipped_steps(own) == 1);
  CHECK(memcmp(parameters, before, sizeof before) != 0);
  slamb_gpt2_free(own);
}

static int is_rejected(const size_t* sizes, const slamb_gpt2_options* options, const char* reason) {
  slamb_gpt2* const made = slamb_gpt2_create(parameters, gradients, sizes, options, MPI_COMM_WORLD);
  slamb_gpt2_free(made);
  return made == NULL && has_said(reason);
}

static void check_errors(void) {
  const slamb_gpt2_options right = options_of("lamb");
  size_t sizes[SLAMB_GPT2_TENSORS];
  for (int t = 0; t < SLAMB_GPT2_TENSORS; ++t) {
    char named[32];
    snprintf(named, sizeof named, "sizes[%d], of ", t == 14 ? 2 : t); /* C = 5 shows in the first tensor of layers */
    memcpy(sizes, right_sizes, sizeof sizes);
    ++sizes[t];
    CHECK(is_rejected(sizes, &right, named));
    sizes[t] = 0;
    if (t != 14) CHECK(is_rejected(sizes, &right, named));
  }
  CHECK(is_rejected(sizes, &right,
                    "sizes[15], of lnfb, is 0, but it must be 4 with L = sizes[2] / C = 3 and C = sizes[14] = 4"));
  memcpy(sizes, right_sizes, sizeof sizes);
  sizes[14] = 0;
  CHECK(is_rejected(sizes, &right, "sizes[14], of lnfw, is 0, but it must be the number of channels"));

  slamb_gpt2_options options = right;
  options.optimizer = "sgd";
  CHECK(is_rejected(right_sizes, &options, "optimizer 'sgd' is none of adamw, lamb"));
  options = right;
  options.beta1 = 1.5;
  CHECK(is_rejected(right_sizes, &options, "beta1 = 1.5"));
  options = right;
  options.vocabulary = 17;
  CHECK(is_rejected(right_sizes, &options, "vocabulary = 17, but its tensor has only 16 rows"));
  options = right;
  options.positions = 7;
  CHECK(is_rejected(right_sizes, &options, "positions = 7, but its tensor has only 6 rows"));
  CHECK(is_rejected(NULL, &right, "must not be NULL"));

  if (processes > 1) {
    const char* const differs[] = {"; the option vocabulary must be equal", "; the option positions must be equal"};
    for (int of_first = 0; of_first <= 4; of_first += 4) { /* 0: no row is masked there */
      options = right;
      if (rank == 0) options.vocabulary = (size_t)of_first;
      CHECK(is_rejected(right_sizes, &options, differs[0]));
      options = right;
      if (rank == 0) options.positions = (size_t)of_first;
      CHECK(is_rejected(right_sizes, &options, differs[1]));
      if (of_first == 0)
        CHECK(has_said(rank == 0 ? "positions is 0 on this process, and 0 to 5 on all"
                                 : "positions is 5 on this process, and 0 to 5"));
    }
    options = right;
    if (rank == 0) options.weight_decay = 0.25;
    CHECK(is_rejected(right_sizes, &options, "weight decay"));
    CHECK(!has_said("the option"));
  }

  const char* const null = "optimizer is NULL";
  CHECK(slamb_gpt2_step(NULL, rate) == 1 && has_said(null));
  CHECK(slamb_gpt2_save(NULL, "state") == 1 && has_said(null));
  CHECK(slamb_gpt2_load(NULL, "state") == 1 && has_said(null));
  CHECK(slamb_gpt2_sent_bytes(NULL) == 0 && slamb_gpt2_skipped_steps(NULL) == 0);

  start();
  slamb_gpt2* const own = create("lamb");
  CHECK(slamb_gpt2_step(own, -1.0) == 1);
  CHECK(has_said("-1"));
  CHECK(distance_from_oracle() == 0.0);
  CHECK(slamb_gpt2_step(own, rate) == 0);
  slamb_gpt2_free(own);
}

int main(int argc, char** argv) {
  int all[2];
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &processes);
  check_values();
  check_resumed();
  check_skipped("adamw");
  check_skipped("lamb");
  check_skipped("lamb+int4");
  check_skipped("one_bit_lamb");
  check_errors();
  const int own[2] = {checks, failures};
  MPI_Allreduce(own, all, 2, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
  if (rank == 0) printf("%d processes: %d checks, %d failed\n", processes, all[0], all[1]);
  MPI_Finalize();
  return all[1] == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
