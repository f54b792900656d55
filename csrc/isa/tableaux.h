/* Made by tools/generate_tableaux.py: do not edit. Runge-Kutta methods, by enum spo_method. */

#define SPO_MAX_STAGES 7

typedef struct {
    int stages;
    double a[SPO_MAX_STAGES][SPO_MAX_STAGES]; /* strictly lower triangle */
    double b[SPO_MAX_STAGES];                 /* weights of the solution */
    double embedded[SPO_MAX_STAGES];          /* weights of the lower-order solution, or zeros */
} spo_tableau;

static const spo_tableau spo_tableaux[] = {
    /* euler: L. Euler, Institutionum calculi integralis I, 1768 */
    {1,
     {{0}},
     {1},
     {0}},
    /* rk4: W. Kutta, Z. Math. Phys. 46 (1901) 435-453 */
    {4,
     {{0},
      {1.0 / 2},
      {0, 1.0 / 2},
      {0, 0, 1}},
     {1.0 / 6, 1.0 / 3, 1.0 / 3, 1.0 / 6},
     {0}},
    /* rk45: J. R. Dormand, P. J. Prince, J. Comput. Appl. Math. 6 (1980) 19-26, RK5(4)7M */
    {7,
     {{0},
      {1.0 / 5},
      {3.0 / 40, 9.0 / 40},
      {44.0 / 45, -56.0 / 15, 32.0 / 9},
      {19372.0 / 6561, -25360.0 / 2187, 64448.0 / 6561, -212.0 / 729},
      {9017.0 / 3168, -355.0 / 33, 46732.0 / 5247, 49.0 / 176, -5103.0 / 18656},
      {35.0 / 384, 0, 500.0 / 1113, 125.0 / 192, -2187.0 / 6784, 11.0 / 84}},
     {35.0 / 384, 0, 500.0 / 1113, 125.0 / 192, -2187.0 / 6784, 11.0 / 84, 0},
     {5179.0 / 57600, 0, 7571.0 / 16695, 393.0 / 640, -92097.0 / 339200, 187.0 / 2100, 1.0 / 40}},
};
